// Writes the computed tables of docs/scale.md from its table of constants; --print writes the page to standard output instead.
import { readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const PAGE = fileURLToPath(new URL('../../docs/scale.md', import.meta.url))
const NODES = [1, 100, 1_000, 5_000, 15_000, 65_000, 100_000]
const RATES = [10, 100]
const OBJECTS = 20_000
/** Of a relay: src/relay/server.ts. */
const CONNECTIONS_MAX = 2_048
/** What a relay may take of its only processor, and of its network. */
const RELAY_CORES = 0.5
const GIGABIT_BYTES = 125e6
/** How long after the last round the next one begins: src/relay/state.ts. */
function spacingOf(cost) {
  return Math.max(0.005, Math.min(cost / 0.46, 0.14), Math.min(cost + 0.002, 0.18))
}

/** The rows `| name | value unit | ...` of the first table. */
function constantsOf(page) {
  const rows = [...page.matchAll(/^\| `(\w+)` \| ([\d.]+) /gm)].map(([, name, value]) => [
    name,
    Number(value),
  ])
  return Object.fromEntries(rows)
}

function grouped(value) {
  return value.toLocaleString('en-US')
}

function short(value) {
  if (value === 0) return '0'
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3
  return Number(value.toFixed(digits)) === 0 ? '< 0.001' : grouped(Number(value.toFixed(digits)))
}

function table(head, rows) {
  return [head, head.map(() => '---'), ...rows].map(cells => `| ${cells.join(' | ')} |`).join('\n')
}

/** Processors that a relay keeps busy: changes that come between two rounds are written together. */
function relayCores({ relayUs }, readers, rate) {
  const cost = (readers * relayUs) / 1e6
  return cost * Math.min(rate, 1 / Math.max(cost, spacingOf(cost)))
}

function readersWithin(constants, rate) {
  let readers = 1
  while (relayCores(constants, readers + 1, rate) <= RELAY_CORES) readers++
  return readers
}

/** Readers that one relay carries at this rate, by what limits them. */
function readersMax(constants, rate) {
  const { relayKiB, objectBytes } = constants
  return {
    cpu: readersWithin(constants, rate),
    network: Math.floor(GIGABIT_BYTES / (rate * objectBytes)),
    memory: Math.floor((512 * 1_024) / relayKiB),
    connections: CONNECTIONS_MAX,
  }
}

function relaysFor(constants, nodes, rate) {
  return nodes === 1
    ? 1
    : Math.max(2, Math.ceil(nodes / Math.min(...Object.values(readersMax(constants, rate)))))
}

function changesTable(constants, rate) {
  const { serverUs, changeMs, objectBytes } = constants
  const own = (changeMs * rate) / 1e3
  return table(
    [
      'nodes',
      'API server alone: cores',
      'MB/s',
      'relays',
      'API server with relays: cores',
      'MB/s',
      'each relay: cores',
      'MB/s',
    ],
    NODES.map(nodes => {
      const relays = relaysFor(constants, nodes, rate)
      const cores = readers => own + (readers * rate * serverUs) / 1e6
      const traffic = readers => (readers * rate * objectBytes) / 1e6
      const share = Math.ceil(nodes / relays)
      return [
        grouped(nodes),
        ...[cores(nodes), traffic(nodes)].map(short),
        String(relays),
        ...[cores(relays), traffic(relays), relayCores(constants, share, rate), traffic(share)].map(short),
      ]
    }),
  )
}

function startTable(constants) {
  const { listUs, connectMs, objectBytes, serverKiB } = constants
  return table(
    [
      'nodes',
      'API server alone: CPU s',
      'GB',
      'memory for watches, GiB',
      'relays',
      'API server with relays: CPU s',
      'GB',
      'memory, GiB',
    ],
    NODES.map(nodes => {
      const relays = relaysFor(constants, nodes, RATES[0])
      const costs = readers => [
        (readers * ((OBJECTS * listUs) / 1e3 + connectMs)) / 1e3,
        (readers * OBJECTS * objectBytes) / 1e9,
        (readers * serverKiB) / 1024 ** 2,
      ]
      return [grouped(nodes), ...costs(nodes).map(short), String(relays), ...costs(relays).map(short)]
    }),
  )
}

function limitsTable(constants) {
  return table(
    [
      'changes a second',
      'half a processor',
      '1 Gbit/s',
      '512 MiB',
      'connections',
      'a node: of one processor',
      'a node: KB/s',
    ],
    RATES.map(rate => {
      const limits = Object.values(readersMax(constants, rate))
      const node = (rate * constants.nodeUs) / 1e4
      return [
        String(rate),
        ...limits.map(value => (value === Math.min(...limits) ? `**${grouped(value)}**` : grouped(value))),
        `${short(node)} %`,
        short((rate * constants.objectBytes) / 1e3),
      ]
    }),
  )
}

/** The page with what is between its marks computed anew. */
function written(page) {
  const constants = constantsOf(page)
  const parts = {
    'changes 10': changesTable(constants, 10),
    'changes 100': changesTable(constants, 100),
    start: startTable(constants),
    limits: limitsTable(constants),
  }
  return Object.entries(parts).reduce((text, [name, content]) => {
    const mark = `<!-- computed: ${name} -->`
    const [before, , after] = text.split(mark)
    if (after === undefined) throw new Error(`docs/scale.md: ${mark} is not there twice`)
    return `${before}${mark}\n\n${content}\n\n${mark}${after}`
  }, page)
}

const page = readFileSync(PAGE, 'utf8')
if (process.argv.includes('--print')) process.stdout.write(written(page))
else writeFileSync(PAGE, written(page))
