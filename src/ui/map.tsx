import { useState } from 'preact/hooks'
import { listAt, numberAt, textAt } from '../base/plain-data.ts'
import { useData } from './data.ts'
import { hashOf, numberText, serviceHash, shortText } from './format.ts'
import { type MapLink, type MapNode, mapLayout } from './map-layout.ts'
import { type Column, Table, Trouble, useWidth } from './parts.tsx'

/** Names of a side that a window has room for; the smallest others are one. */
const ROWS_MAX = 16

/** The largest links, which are drawn strongly until the pointer chooses others. */
const STRONG_MAX = 24

/** Who has connections to what: namespaces, and the Service ports of one of them. */
export function MapView({ namespace }: { readonly namespace: string }) {
  const shown = useData('flows', namespace === '' ? {} : { namespace }, 10_000)
  const talks = listAt(shown?.data, 'talks').map(talk => ({
    from: textAt(talk, 'from'),
    to: textAt(talk, 'to'),
    connections: numberAt(talk, 'connections') ?? 0,
  }))
  const [age, others] = [numberAt(shown?.data, 'readAgeS') ?? 0, numberAt(shown?.data, 'otherTalks') ?? 0]
  return (
    <>
      {namespace === '' ? null : (
        <>
          <p>
            <a href="#map">All namespaces</a>
          </p>
          <h2>{namespace}</h2>
        </>
      )}
      <Trouble error={shown?.error} />
      {shown?.data === undefined ? null : (
        <>
          <p class="hint">
            {`Connections in the connection table, read ${age} s ago`}
            {others === 0 ? '.' : `; ${numberText(others)} smaller pairs are not drawn.`}
          </p>
          {talks.length === 0 ? (
            <p>No connection to a Service.</p>
          ) : (
            <Drawing talks={talks} hasServices={namespace !== ''} />
          )}
        </>
      )}
    </>
  )
}

interface Talk {
  readonly from: string
  readonly to: string
  readonly connections: number
}

interface DrawingProps {
  readonly talks: readonly Talk[]
  readonly hasServices: boolean
}

function Drawing({ talks, hasServices }: DrawingProps) {
  const [width, take] = useState(800)
  const [pointed, point] = useState<string>()
  const ref = useWidth(take)
  const { left, right, links, height } = mapLayout(talks, ROWS_MAX)
  const labels = Math.min(260, Math.floor(width * 0.4))
  const [start, end] = [labels, width - labels]
  // Where everybody talks to everybody, all lines at once show nothing.
  const strong = links.toSorted((a, b) => b.connections - a.connections).slice(0, STRONG_MAX)
  const isDim = (link: MapLink) =>
    pointed === undefined
      ? !strong.includes(link)
      : pointed !== `left ${link.from.name}` && pointed !== `right ${link.to.name}`
  const hrefOf = ({ name, others }: MapNode) => {
    if (others > 0) return undefined
    return hasServices ? serviceHash(name.replace(/:.*$/, '')) : hashOf('map', [name])
  }
  const common = { labels, point }
  return (
    <>
      <section ref={ref} class="map" aria-label="Map">
        <svg width={width} height={height} aria-label="Map of connections">
          {links.map(link => (
            <path
              key={`${link.from.name} ${link.to.name}`}
              class={isDim(link) ? 'link dim' : 'link'}
              style={{ strokeWidth: link.width }}
              d={curveOf(link, start, end)}
            >
              <title>{`${link.from.name} to ${link.to.name}: ${numberText(link.connections)}`}</title>
            </path>
          ))}
          {left.map(node => (
            <Mark key={node.name} {...common} node={node} side="left" x={start - 8} href={undefined} />
          ))}
          {right.map(node => (
            <Mark key={node.name} {...common} node={node} side="right" x={end} href={hrefOf(node)} />
          ))}
        </svg>
      </section>
      <details>
        <summary>As a table</summary>
        <Table caption="Connections" empty="" columns={COLUMNS} rows={talks} />
      </details>
    </>
  )
}

interface MarkProps {
  readonly node: MapNode
  readonly side: 'left' | 'right'
  readonly x: number
  /** Room for the name, in pixels. */
  readonly labels: number
  /** Where the node leads to; undefined for nowhere. */
  readonly href: string | undefined
  readonly point: (pointed: string | undefined) => void
}

function Mark({ node: { name, connections, y, height }, side, x, labels, href, point }: MarkProps) {
  const label = `${name}: ${numberText(connections)} connections`
  const number = numberText(connections)
  // In a namespace, its name is the heading. A letter has 7.2 pixels.
  const shown = side === 'right' ? name.replace(/^.*\//, '') : name
  const room = Math.floor((labels - 18) / 7.2) - number.length - 1
  const [place, anchor] = side === 'left' ? [x - 8, 'end'] : [x + 16, 'start']
  const body = (
    <>
      <title>{label}</title>
      <rect x={x} y={y} width={8} height={height} rx={2} />
      <text x={place} y={y + height / 2 + 4} text-anchor={anchor}>
        {`${shortText(shown, room)} `}
        <tspan>{number}</tspan>
      </text>
    </>
  )
  const pointing = {
    onMouseEnter: () => point(`${side} ${name}`),
    onMouseLeave: () => point(undefined),
  }
  return href === undefined ? (
    <g {...pointing}>{body}</g>
  ) : (
    <a {...pointing} href={href} data-row aria-label={label}>
      {body}
    </a>
  )
}

function curveOf({ fromY, toY }: MapLink, start: number, end: number): string {
  const middle = (start + end) / 2
  return `M${start} ${fromY}C${middle} ${fromY} ${middle} ${toY} ${end} ${toY}`
}

const COLUMNS: readonly Column<Talk>[] = [
  { title: 'From', cell: ({ from }) => from },
  { title: 'To', cell: ({ to }) => to },
  { title: 'Connections', isNumber: true, cell: ({ connections }) => numberText(connections) },
]
