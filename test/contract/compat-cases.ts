import { answers, type Case, takes } from './case.ts'
import * as of from './objects.ts'
import { APPEND, attribute, CREATE, MSG, nest, nft, type Raw, str, u32 } from './wire.ts'

interface Place {
  readonly table: string
  readonly chain: string
  readonly protocol?: number
}

function chain(table: string, name: string, hook?: of.Hook): Raw {
  return of.chain(name, hook, table)
}

function rule({ table, chain, protocol }: Place, ...expressions: readonly Buffer[]): Raw {
  const compat = protocol === undefined ? [] : [nest(5, u32(1, protocol), u32(2, 0))]
  return nft(MSG.newRule, CREATE | APPEND, str(1, table), str(2, chain), nest(4, ...expressions), ...compat)
}

/** A match or target whose structure is zeros behind `head`. */
function extension(
  kind: 'match' | 'target',
  name: string,
  { revision, length, head = [] }: Structure,
): Buffer {
  const info = Buffer.alloc(length)
  info.set(head)
  return of.expression(kind, str(1, name), u32(2, revision), attribute(3, info))
}

interface Structure {
  readonly revision: number
  readonly length: number
  readonly head?: readonly number[]
}

const COMMENT = { revision: 0, length: 256, head: [65] }
const MARK = extension('target', 'MARK', { revision: 2, length: 8, head: [4] })
const MASQUERADE = extension('target', 'MASQUERADE', { revision: 0, length: 24, head: [1] })
const DNAT = extension('target', 'DNAT', { revision: 2, length: 48, head: [3] })
const REJECT = extension('target', 'REJECT', { revision: 0, length: 8, head: [3] })
const TCP = extension('match', 'tcp', { revision: 0, length: 16 })

const FILTER = { table: 'filter', chain: 'c' }
const NAT = { table: 'nat', chain: 'c' }
const FILTERS = [of.table(0, 'filter'), chain('filter', 'c')]
const NATS = [of.table(0, 'nat'), chain('nat', 'c')]
const PRE: of.Hook = { type: 'nat', hooknum: 0, priority: -100 }
const POST: of.Hook = { type: 'nat', hooknum: 4, priority: 100 }
const FILTER_IN: of.Hook = { type: 'filter', hooknum: 1, priority: 0 }
const FILTER_POST: of.Hook = { type: 'filter', hooknum: 4, priority: 0 }
const FILTER_PRE: of.Hook = { type: 'filter', hooknum: 0, priority: -150 }

const ofStructures: readonly Case[] = [
  ...(['match', 'target'] as const).map(kind => ({
    title: `refuses a ${kind} that nobody registered`,
    given: FILTERS,
    batch: [rule(FILTER, extension(kind, 'nope', { revision: 0, length: 8 }))],
    replies: ['2 ENOENT @44'],
  })),
  answers('refuses a revision that it does not have', ['2 ENOENT @44', '3 ENOENT @44'], {
    given: FILTERS,
    batch: [
      rule(FILTER, extension('match', 'comment', { ...COMMENT, revision: 7 })),
      rule(FILTER, extension('target', 'MARK', { revision: 9, length: 8 })),
    ],
  }),
  answers(
    'refuses a structure that is too short or too long',
    ['2 EINVAL @44', '3 EINVAL @44', '4 EINVAL @44'],
    {
      given: FILTERS,
      batch: [8, 255, 264].map(length => rule(FILTER, extension('match', 'comment', { ...COMMENT, length }))),
    },
  ),
  takes(
    'takes a structure with and without its padding',
    [12, 16].map(length =>
      rule({ ...FILTER, protocol: 6 }, extension('match', 'tcp', { revision: 0, length })),
    ),
    FILTERS,
  ),
  answers('wants the protocol of a match that has one', ['2 EINVAL @44', '3 EINVAL @44'], {
    given: FILTERS,
    batch: [rule(FILTER, TCP), rule({ ...FILTER, protocol: 17 }, TCP)],
  }),
]

const ofTables: readonly Case[] = [
  takes('takes MARK anywhere', [rule(FILTER, MARK)], FILTERS),
  answers('refuses to translate addresses outside the table nat', ['2 EINVAL @44', '3 EINVAL @44'], {
    given: FILTERS,
    batch: [rule(FILTER, MASQUERADE), rule({ ...FILTER, protocol: 6 }, DNAT)],
  }),
  takes(
    'translates in a chain of the table nat',
    [rule(NAT, MASQUERADE), rule({ ...NAT, protocol: 6 }, DNAT)],
    NATS,
  ),
  answers('refuses to reject outside the table filter', ['2 EINVAL @40'], {
    given: NATS,
    batch: [rule(NAT, REJECT)],
  }),
]

const ofHooks: readonly Case[] = [
  answers('refuses a translation at a hook where it does not work', ['2 EINVAL @40', '3 EINVAL @44'], {
    given: [...NATS, chain('nat', 'PRE', PRE), chain('nat', 'POST', POST)],
    batch: [rule({ table: 'nat', chain: 'PRE' }, MASQUERADE), rule({ table: 'nat', chain: 'POST' }, DNAT)],
  }),
  takes(
    'translates at its hooks',
    [rule({ table: 'nat', chain: 'POST' }, MASQUERADE), rule({ table: 'nat', chain: 'PRE' }, DNAT)],
    [...NATS, chain('nat', 'PRE', PRE), chain('nat', 'POST', POST)],
  ),
  answers('refuses a translation in a chain that is not of the type nat', ['2 EINVAL'], {
    given: [...NATS, chain('nat', 'FPRE', FILTER_PRE)],
    batch: [rule({ table: 'nat', chain: 'FPRE' }, DNAT)],
  }),
  answers('rejects only packets that come in or pass', ['3 EINVAL @48'], {
    given: [...FILTERS, chain('filter', 'IN', FILTER_IN), chain('filter', 'POST', FILTER_POST)],
    batch: [rule({ table: 'filter', chain: 'IN' }, REJECT), rule({ table: 'filter', chain: 'POST' }, REJECT)],
  }),
  {
    title: 'refuses a jump to a translation from a hook where it does not work',
    given: [...NATS, chain('nat', 'POST', POST), rule(NAT, DNAT)],
    batch: [rule({ table: 'nat', chain: 'POST' }, of.jump('c'))],
    replies: ['2 EINVAL'],
    older: { upTo: [6, 1], replies: ['2 EINVAL @44'] },
  },
  takes(
    'takes a jump to a translation from its hook',
    [rule({ table: 'nat', chain: 'PRE' }, of.jump('c'))],
    [...NATS, chain('nat', 'PRE', PRE), rule(NAT, DNAT)],
  ),
]

/** What nft_compat takes and refuses. */
export const COMPAT_CASES: readonly Case[] = [...ofStructures, ...ofTables, ...ofHooks]
