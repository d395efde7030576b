import { render } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { buildInfo, buildText } from '../base/build-info.ts'
import { fieldOf, textAt } from '../base/plain-data.ts'
import { DaemonAway, TooOften, useData } from './data.ts'
import { ConfigurationView, EventsView } from './events.tsx'
import { type Place, placeOf } from './format.ts'
import { KEYS, pressed } from './keys.ts'
import { MapView } from './map.tsx'
import { levelOf, NodeView } from './node.tsx'
import { Now, Sign } from './parts.tsx'
import { ServiceView } from './service.tsx'
import { RatesView, ServicesView } from './services.tsx'

const VIEWS = [
  ['node', 'Node'],
  ['services', 'Services'],
  ['map', 'Map'],
  ['rates', 'Rates'],
  ['events', 'Events'],
  ['configuration', 'Configuration'],
] as const

const VERSION = buildText(buildInfo())

/** Time between two answers to "is this node well?", which every view shows. */
const CHECK_MS = 3_000
/** The step of the curves. */
const CURVES_MS = 5_000

function Page() {
  const place = usePlace()
  const [id, title] = VIEWS.find(([view]) => view === place.view) ?? VIEWS[0]
  const node = useData('node', {}, CHECK_MS)
  const curves = useData('curves', {}, CURVES_MS)
  const heading = useRef<HTMLHeadingElement>(null)
  const help = useRef<HTMLDialogElement>(null)
  useKeys(() => help.current?.showModal())
  const where = [id, ...place.parts].join('/')
  const isFirst = useRef(true)
  useEffect(() => {
    document.title = `${title} - kprobe`
    // A screen reader continues where the new view begins.
    if (!isFirst.current) heading.current?.focus()
    isFirst.current = false
  }, [where])
  const banner = bannerOf(node)
  const data = node?.data
  return (
    <Now.Provider value={textAt(data, 'now')}>
      <button type="button" class="skip" onClick={() => heading.current?.focus()}>
        Skip to the content
      </button>
      <Header id={id} node={data} help={() => help.current?.showModal()} />
      <main>
        <h1 ref={heading} tabIndex={-1}>
          {title}
        </h1>
        {banner === '' ? null : (
          <p id="banner" role="alert">
            {banner}
          </p>
        )}
        {/* What a daemon that is away, or of another version, has said could be wrong. */}
        <div id="content" hidden={banner !== '' || data === undefined}>
          {data === undefined ? null : (
            <View key={where} id={id} place={place} node={data} curves={curves?.data} />
          )}
        </div>
      </main>
      <Help dialog={help} />
    </Now.Provider>
  )
}

interface ViewProps {
  readonly id: (typeof VIEWS)[number][0]
  readonly place: Place
  readonly node: unknown
  readonly curves: unknown
}

function View({ id, place: { parts, query }, node, curves }: ViewProps) {
  switch (id) {
    case 'node':
      return <NodeView node={node} curves={curves} />
    case 'services':
      return parts.length === 0 ? <ServicesView query={query} /> : <ServiceView service={parts.join('/')} />
    case 'map':
      return <MapView namespace={parts[0] ?? ''} />
    case 'rates':
      return <RatesView />
    case 'events':
      return <EventsView node={node} />
    case 'configuration':
      return <ConfigurationView />
  }
}

interface HeaderProps {
  readonly id: string
  readonly node: unknown
  readonly help: () => void
}

function Header({ id, node, help }: HeaderProps) {
  const document = fieldOf(node, 'document')
  const level = levelOf(document)
  return (
    <header>
      <strong>kprobe</strong>
      {node === undefined ? null : (
        <a class={`state ${level}`} href="#node" title={textAt(document, 'sentence')}>
          <Sign level={level} /> {`${textAt(node, 'node')}: ${textAt(document, 'verdict')}`}
        </a>
      )}
      <nav aria-label="Views">
        <ul>
          {VIEWS.map(([view, title]) => (
            <li key={view}>
              <a href={`#${view}`} aria-current={view === id ? 'page' : undefined}>
                {title}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <button type="button" class="help" aria-label="Keys" title="Keys (?)" onClick={help}>
        ?
      </button>
    </header>
  )
}

function Help({ dialog }: { readonly dialog: { current: HTMLDialogElement | null } }) {
  return (
    <dialog ref={dialog} aria-label="Keys">
      <h2>Keys</h2>
      <dl>
        {KEYS.map(([key, text]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog">
        <button type="submit">Close</button>
      </form>
    </dialog>
  )
}

/** Says why the page shows nothing: the daemon is away, or of another version than the page. */
function bannerOf(node: ReturnType<typeof useData>): string {
  if (node?.error instanceof DaemonAway)
    return `The daemon does not answer (${node.error.message}). Retrying.`
  if (node?.error !== undefined && !(node.error instanceof TooOften)) return node.error.message
  if (node?.data === undefined) return node?.error?.message ?? ''
  const version = textAt(node.data, 'version')
  if (version === VERSION) return ''
  return `This page is of version ${VERSION}, the daemon of version ${version || 'unknown'}: load the page again.`
}

function usePlace(): Place {
  const [place, move] = useState(placeOf(window.location.hash))
  useEffect(() => {
    const moved = () => move(placeOf(window.location.hash))
    window.addEventListener('hashchange', moved)
    return () => window.removeEventListener('hashchange', moved)
  }, [])
  return place
}

function useKeys(help: () => void): void {
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const view = (index: number) => {
        const [id] = VIEWS[index] ?? []
        if (id !== undefined) window.location.hash = `#${id}`
      }
      const back = () => {
        const { view, parts } = placeOf(window.location.hash)
        // A list that was left has its filter in the address.
        if (parts.length > 0 && window.history.length > 1) window.history.back()
        else window.location.hash = parts.length > 0 ? `#${view}` : '#node'
      }
      if (pressed(event, { help, view, back })) event.preventDefault()
    }
    document.addEventListener('keydown', press)
    return () => document.removeEventListener('keydown', press)
  }, [])
}

const body = document.getElementById('page')
if (body === null) throw new Error('the page has no element page')
render(<Page />, body)
