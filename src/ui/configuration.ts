import { fieldOf } from '../base/plain-data.ts'
import { element, Table } from './dom.ts'
import { filterField } from './services.ts'
import { ask, type View } from './view.ts'

type Pair = readonly [string, string]

/** The flags as they hold, and the configuration as kube-proxy's API type. */
export function configuration(): View {
  let wanted = ''
  let flags: readonly Pair[] = []
  let fields: readonly Pair[] = []
  const columns = [
    { title: 'Name', cell: ([name]: Pair) => name },
    { title: 'Value', cell: ([, value]: Pair) => value },
  ]
  const flagTable = new Table<Pair>({ caption: 'Flags', empty: 'no flag matches', columns })
  const fieldTable = new Table<Pair>({ caption: 'Configuration', empty: 'no field matches', columns })
  const show = () => {
    const isWanted = (pair: Pair) => pair.some(text => text.toLowerCase().includes(wanted))
    flagTable.show(flags.filter(isWanted))
    fieldTable.show(fields.filter(isWanted))
  }
  const tools = element(
    'form',
    { role: 'search', 'aria-label': 'Configuration' },
    filterField('Filter', text => {
      wanted = text.trim().toLowerCase()
      show()
    }),
  )
  tools.addEventListener('submit', event => event.preventDefault())
  return {
    node: element('div', {}, tools, flagTable.node, fieldTable.node),
    everyMs: 10_000,
    async refresh() {
      const config = await ask('config')
      flags = pairsOf(fieldOf(config, 'flags')).map(([name, value]): Pair => [`--${name}`, value])
      fields = pairsOf(fieldOf(config, 'configuration'))
      show()
    },
  }
}

/** Leaves of a tree, by their paths: `conntrack.maxPerCore`. Pure. */
function pairsOf(tree: unknown, path = ''): readonly Pair[] {
  if (typeof tree !== 'object' || tree === null || Array.isArray(tree))
    return [[path, typeof tree === 'string' ? tree : (JSON.stringify(tree) ?? '')]]
  return Object.entries(tree).flatMap(([name, value]) =>
    pairsOf(value, path === '' ? name : `${path}.${name}`),
  )
}
