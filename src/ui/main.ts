import { buildInfo, buildText } from '../base/build-info.ts'
import { textAt } from '../base/plain-data.ts'
import { ask, DaemonAway, element, NoAnswer, replaceChildren, type View } from './dom.ts'
import { configuration, overview, receipts, timeline } from './overview.ts'
import { servicePath } from './path.ts'
import { rates, services } from './services.ts'

const VIEWS: readonly { readonly id: string; readonly title: string; readonly open: () => View }[] = [
  { id: 'overview', title: 'Overview', open: overview },
  { id: 'services', title: 'Services', open: services },
  { id: 'rates', title: 'Rates', open: rates },
  { id: 'timeline', title: 'Drift and repairs', open: timeline },
  { id: 'receipts', title: 'Receipts', open: receipts },
  { id: 'configuration', title: 'Configuration', open: configuration },
]

/** Time until a daemon that was away is queried again, and between two checks of its version. */
const CHECK_MS = 3_000

/** Shows one view at a time, and refreshes it while it is visible. */
class Shell {
  readonly #content = part('content')
  readonly #banner = part('banner')
  readonly #title = part('title')
  readonly #version = buildText(buildInfo())
  #ending = new AbortController()

  start(): void {
    replaceChildren(
      part('views'),
      ...VIEWS.map(({ id, title }) => element('li', {}, element('a', { href: `#${id}` }, title))),
    )
    // Its own fragment would name a view.
    part('skip').addEventListener('click', event => {
      event.preventDefault()
      this.#title.focus()
    })
    window.addEventListener('hashchange', () => this.#show(true))
    this.#show(false)
  }

  #show(isMove: boolean): void {
    const [id = '', ...rest] = window.location.hash.slice(1).split('/')
    const chosen = VIEWS.find(view => view.id === id) ?? VIEWS[0]
    if (chosen === undefined) return
    for (const link of document.querySelectorAll('#views a'))
      if (link.getAttribute('href') === `#${chosen.id}`) link.setAttribute('aria-current', 'page')
      else link.removeAttribute('aria-current')
    const service = chosen.id === 'services' ? rest.map(decoded).join('/') : ''
    replaceChildren(this.#title, chosen.title)
    document.title = `${chosen.title} - kprobe`
    const view = service === '' ? chosen.open() : servicePath(service)
    this.#content.hidden = true
    replaceChildren(this.#content, view.node)
    // A screen reader continues where the new view begins.
    if (isMove) this.#title.focus()
    this.#ending.abort()
    this.#ending = new AbortController()
    void this.#follow(view, this.#ending.signal)
  }

  async #follow(view: View, signal: AbortSignal): Promise<void> {
    let dueMs = 0
    while (!signal.aborted) {
      if (!document.hidden) {
        const problem = await this.#problem(view, performance.now() >= dueMs)
        if (signal.aborted) return
        this.#state(problem)
        if (performance.now() >= dueMs) dueMs = performance.now() + (view.everyMs ?? Number.POSITIVE_INFINITY)
        if (problem !== '') dueMs = 0
      }
      await rest(Math.min(CHECK_MS, view.everyMs ?? CHECK_MS), signal)
    }
  }

  /** Looks for the daemon, and refreshes the view if it is due; gives the problem that keeps it from being shown. */
  async #problem(view: View, isDue: boolean): Promise<string> {
    // At once with the version: nothing is on show before both are there.
    const refreshed = isDue ? view.refresh() : Promise.resolve()
    refreshed.catch(() => undefined)
    try {
      const version = textAt(await ask('status'), 'version')
      if (version !== this.#version)
        return `This page is of version ${this.#version}, the daemon of version ${version || 'unknown'}: load the page again.`
      await refreshed
      return ''
    } catch (error) {
      if (error instanceof NoAnswer) return error.message
      if (error instanceof DaemonAway) return `The daemon does not answer (${error.message}). Retrying.`
      throw error
    }
  }

  /** A table of a daemon that is away, or of another version, is not shown: it could be wrong. */
  #state(banner: string): void {
    this.#banner.hidden = banner === ''
    if (this.#banner.textContent !== banner) replaceChildren(this.#banner, banner)
    this.#content.hidden = banner !== ''
  }
}

/** Waits; a view that was left, or a page that can be seen again, ends it. */
function rest(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const end = () => {
      window.clearTimeout(timer)
      document.removeEventListener('visibilitychange', end)
      resolve()
    }
    const timer = window.setTimeout(end, ms)
    signal.addEventListener('abort', end, { once: true })
    document.addEventListener('visibilitychange', end)
  })
}

function part(id: string): HTMLElement {
  const found = document.getElementById(id)
  if (found === null) throw new Error(`the page has no element ${id}`)
  return found
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

new Shell().start()
