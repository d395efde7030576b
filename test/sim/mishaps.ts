import {
  BAD_UTF8,
  EXPIRED_EVENT,
  errorEvent,
  type Fault,
  type FaultRule,
  NULS,
  tableObject,
} from '../support/apiserver/faults.ts'
import type { Random } from '../support/apiserver/random.ts'
import type { FakeKernel } from '../support/fake-kernel/kernel.ts'

const RESOURCES = ['services', 'endpointslices', 'nodes', 'servicecidrs'] as const
const CODES = [401, 403, 410, 429, 500, 502, 503, 504] as const
const ENDINGS = ['end', 'reset', 'stall', 'rst-stream'] as const

/** Something for the server to get wrong for a few requests, and what it is called. */
export function mishap(random: Random): { readonly name: string; readonly rule: FaultRule } {
  const fault = random.pick(FAULTS)(random)
  const resource = random.chance(0.3) ? {} : { resource: random.pick(RESOURCES) }
  const verb = random.chance(0.5) ? {} : { verb: random.pick(['list', 'watch'] as const) }
  const times = random.int(1, 4)
  const name = `${JSON.stringify(fault, bigintAsText)} ${JSON.stringify({ ...resource, ...verb, times })}`
  return { name, rule: { ...resource, ...verb, times, faults: [fault] } }
}

const FAULTS: readonly ((random: Random) => Fault)[] = [
  random => ({
    kind: 'status',
    code: random.pick(CODES),
    html: random.chance(0.2),
    ...(random.chance(0.4) ? { retryAfter: random.pick(['7', '0', '-1', 'soon', '99999999999']) } : {}),
  }),
  random => ({ kind: 'ending', ending: random.pick(ENDINGS), at: 'before' }),
  random => ({ kind: 'ending', ending: random.pick(ENDINGS), at: { events: random.int(0, 5) } }),
  random => ({ kind: 'ending', ending: random.pick(ENDINGS), at: { bytes: random.int(0, 2_000) } }),
  random => ({
    kind: 'event',
    after: random.int(0, 4),
    event: random.pick([
      EXPIRED_EVENT,
      errorEvent(500, 'InternalError'),
      { type: 'FOO', object: tableObject() },
      { type: 'ADDED', object: tableObject() },
    ]),
  }),
  random => {
    const first = random.int(0, 4)
    return { kind: 'lose', which: (_event, index) => index === first }
  },
  random => {
    const first = random.int(0, 4)
    return { kind: 'duplicate', which: (_event, index) => index >= first }
  },
  random => ({ kind: 'reverse', group: random.int(2, 3) }),
  random => ({ kind: 'twist', behind: BigInt(random.int(1, 30)) }),
  random =>
    random.pick([
      { kind: 'twist', emptyList: true },
      { kind: 'twist', emptyPages: true },
      { kind: 'twist', ignoresLimit: true },
      { kind: 'twist', withholdsEnd: true },
    ] as const),
  random => ({ kind: 'delay', ms: random.pick([100, 5_000, 20_000, 40_000]) }),
  random => ({ kind: 'slow', bytesPerSecond: random.pick([50, 1_000]) }),
  random => {
    const rubbish = random.pick([BAD_UTF8, NULS])
    return { kind: 'bytes', at: { bytes: random.int(0, 2_000) }, bytes: () => rubbish }
  },
  random => ({ kind: 'goaway', code: random.pick([0, 2]), at: { events: random.int(0, 3) } }),
]

function bigintAsText(_name: string, value: unknown): unknown {
  return typeof value === 'bigint' ? String(value) : value
}

/** Somebody else at the kernel's tables, or the kernel itself out of sorts. Gives what was done, in words. */
export function damage(kernel: FakeKernel, random: Random): string {
  const [name, table] = [...kernel.space.tables][0] ?? []
  const dice = random.int(0, 9)
  if (dice < 3 || name === undefined || table === undefined) return refuse(kernel, random)
  kernel.generation++
  if (dice < 5) {
    kernel.space.tables.delete(name)
    return `delete table ${name}`
  }
  const sets = [...table.sets.values()].filter(({ elements }) => elements.size > 0)
  if (sets.length === 0) return 'nothing'
  const set = random.pick(sets)
  const key = random.pick([...set.elements.keys()])
  set.elements.delete(key)
  return `delete an element of ${set.name}`
}

function refuse(kernel: FakeKernel, random: Random): string {
  const code = random.pick(['ENOMEM', 'ENOBUFS', 'EINTR', 'EBUSY'])
  let left = random.int(1, 3)
  kernel.forced.push({ code, matches: () => left-- > 0 })
  return `${left} refusals with ${code}`
}
