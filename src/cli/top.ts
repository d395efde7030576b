import { pause, systemClock } from '../base/clock.ts'
import { oneLine } from '../base/text.ts'
import { type FlagReader, type FlagSpec, flags } from '../config/flag.ts'
import { INSTANCE_FLAG, readInstanceName, readSocketPath } from '../config/own-flags.ts'
import { OUTPUTS, outputFlag, readOutput, writeDocument } from './document.ts'
import { FlowNames } from './flow-reading.ts'
import { readService, SERVICE_FLAG, SOCKET_FLAG } from './flow-request.ts'
import { EXIT_FINE, type Io, lent } from './io.ts'
import { LiveTable } from './live-table.ts'
import { NAMESPACE_FLAG, ownCommand, readNamespace } from './request.ts'
import { TopSampler } from './top-sampler.ts'
import {
  FIRST_VIEW,
  offsetMaxOf,
  rowsOf,
  SORTS,
  type TopState,
  type TopView,
  topKeyPressed,
  topPicture,
  topText,
} from './top-view.ts'

const LIMIT = { min: 1, max: 10_000, fallback: 50 } as const
const INTERVAL = { minMs: 200, fallbackMs: 1_000 } as const
/** Width of a table that goes to no terminal. */
const TEXT_COLUMNS = 100

const FLAGS: readonly FlagSpec[] = [
  SERVICE_FLAG,
  { ...NAMESPACE_FLAG, help: 'only Services of this namespace' },
  ...flags({
    '--by WHAT = service': ['a row for each service or endpoint', { choices: ['service', 'endpoint'] }],
    '--sort-by COLUMN = rate': [SORTS.join(', '), { choices: SORTS }],
    '--interval DURATION = 1s': 'time between two pictures, at least 200ms',
    '--once':
      'measure one interval, print the table, and exit; so does a standard output that is no terminal',
    [`--limit N = ${LIMIT.fallback}`]: 'with --once: rows to print',
  }),
  SOCKET_FLAG,
  INSTANCE_FLAG,
  outputFlag(OUTPUTS),
]

export const command = ownCommand({
  name: 'top',
  description:
    'Shows a live table of Services and endpoints by new connections a second, with the use of the connection table,\n' +
    'rejects, and the state of the daemon. Reads the kernel and the daemon, and changes nothing.',
  details: [
    'Keys:',
    '  q         quit',
    '  s         sort by the next column',
    '  e         Services, or their endpoints',
    '  /         filter by a text in the name',
    '  arrows    scroll',
    '  ?         help',
    '',
    'Rejects are packets that rules of kprobe rejected, where the rules count them. OPEN is counted by a read of the connection table, at most every 5 s.',
  ],
  flags: FLAGS,
  read: readTopRequest,
  run,
})

type TopRequest = ReturnType<typeof readTopRequest>

/** Reads the flags. Reports errors to the reader. */
function readTopRequest(reader: FlagReader, io: Pick<Io, 'suspend'>) {
  const output = readOutput(reader, OUTPUTS, 'text')
  const once = reader.bool('once') || io.suspend === undefined
  if (output !== 'text' && !once) reader.fail('--output', 'is for --once')
  if (reader.given('limit') && !once) reader.fail('--limit', 'is for --once')
  return {
    view: {
      ...FIRST_VIEW,
      by: reader.oneOf('by', ['service', 'endpoint'], 'service'),
      sort: reader.oneOf('sort-by', SORTS, 'rate'),
    },
    service: readService(reader),
    namespace: readNamespace(reader),
    intervalMs: reader.durationMs('interval', INTERVAL),
    once,
    limit: reader.integer('limit', LIMIT),
    output,
    adminSocket: readSocketPath(reader),
    proxyName: readInstanceName(reader),
  }
}

async function run(request: TopRequest, io: Io): Promise<number> {
  const names = await FlowNames.open({ clock: systemClock, ...request })
  if (request.once)
    for (const notice of await names.noticesAbout(request.service)) io.err(`kprobe top: ${oneLine(notice)}\n`)
  const { suspend } = io
  await lent(new TopSampler({ clock: systemClock, wallMs: Date.now, names, ...request }), sampler =>
    request.once || suspend === undefined
      ? printOnce(request, sampler, io)
      : showLive(request, sampler, { io, suspend }),
  )
  return EXIT_FINE
}

async function printOnce(
  { view, intervalMs, limit, output }: TopRequest,
  sampler: TopSampler,
  io: Io,
): Promise<void> {
  // The first sample reads what rates start from.
  await sampler.sample()
  await pause(systemClock, intervalMs, io.signal)
  const state = await sampler.sample()
  if (output !== 'text') await writeDocument({ ...state, rows: rowsOf(state, view, limit) }, output, io)
  else io.out(topText(state, view, { limit, columns: io.columns ?? TEXT_COLUMNS }))
}

async function showLive(
  { view, intervalMs }: TopRequest,
  sampler: TopSampler,
  terminal: { readonly io: Io; readonly suspend: () => void },
): Promise<void> {
  let state: TopState | undefined
  const live = new LiveTable<TopView>({
    ...terminal,
    view,
    picture: (at, size) => state && topPicture(state, at, size),
    keyPressed: (at, key, size) =>
      topKeyPressed(at, key, state === undefined ? 0 : offsetMaxOf(state, at, size)),
  })
  await live.run(async stop => {
    while (!stop.aborted) {
      state = await sampler.sample()
      live.draw()
      await pause(systemClock, intervalMs, stop)
    }
  })
}
