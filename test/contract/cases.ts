import * as of from './objects.ts'
import { CREATE, EXCL, MSG, nft, type Raw, REQUEST, str, u32 } from './wire.ts'

/** One batch, and what comes of it. */
export interface Case {
  readonly title: string
  /** Committed before, besides the table `t` itself. */
  readonly given?: readonly Raw[]
  readonly batch: readonly Raw[]
  /** Replies, in the words of `received`; batch begin is number 1, so that the first message is 2. */
  readonly replies: readonly string[]
  /** Whether the batch makes a new generation. */
  readonly commits?: boolean
}

const commits = true
const LONGEST = 'n'.repeat(255)

const ofTables: readonly Case[] = [
  { title: 'adds a table that is there already, without a new generation', batch: [of.table()], replies: [] },
  {
    title: 'refuses to create a table that is there already',
    batch: [nft(MSG.newTable, CREATE | EXCL, str(1, 't'))],
    replies: ['2 EEXIST @20'],
  },
  { title: 'refuses table flags it does not know', batch: [of.table(0x80)], replies: ['2 EOPNOTSUPP'] },
  { title: 'switches a table off', batch: [of.table(1)], replies: [], commits },
  {
    title: 'names the table that is missing',
    batch: [nft(MSG.newChain, CREATE, str(1, 'nope'), str(3, 'c'))],
    replies: ['2 ENOENT @20'],
  },
  {
    title: 'deletes a missing table only after it was added',
    batch: [of.deleteTable(), of.deleteTable()],
    replies: ['3 ENOENT @20'],
  },
  {
    title: 'replaces a table in one batch whether or not it is there',
    given: [of.deleteTable()],
    batch: [of.table(), of.deleteTable(), of.table(), of.chain('c')],
    replies: [],
    commits,
  },
  {
    title: 'empties everything at a delete without a name',
    given: [of.chain('c')],
    batch: [{ ...nft(MSG.delTable, 0), family: 0 }],
    replies: [],
    commits,
  },
]

const ofChains: readonly Case[] = [
  {
    title: 'adds a chain that is there already, in a new generation',
    given: [of.chain('c')],
    batch: [of.chain('c')],
    replies: [],
    commits,
  },
  {
    title: 'refuses to create a chain that is there already',
    given: [of.chain('c')],
    batch: [nft(MSG.newChain, CREATE | EXCL, str(1, 't'), str(3, 'c'))],
    replies: ['2 EEXIST @28'],
  },
  { title: 'takes a chain name of 255 bytes', batch: [of.chain(LONGEST)], replies: [], commits },
  { title: 'refuses a chain name of 256 bytes', batch: [of.chain(`${LONGEST}n`)], replies: ['2 ERANGE @28'] },
  {
    title: 'refuses to move a base chain to another priority or hook',
    given: [of.chain('b', of.PREROUTING)],
    batch: [
      of.chain('b', { ...of.PREROUTING, priority: -90 }),
      of.chain('b', { ...of.PREROUTING, hooknum: 3 }),
    ],
    replies: ['2 EOPNOTSUPP', '3 EOPNOTSUPP'],
  },
  {
    title: 'refuses to give a base chain another type',
    given: [of.chain('b', of.PREROUTING)],
    batch: [of.chain('b', { ...of.FILTER, priority: -100 })],
    replies: ['2 EEXIST @28'],
  },
  {
    title: 'makes a base chain anew at another priority',
    given: [of.chain('b', of.PREROUTING)],
    batch: [of.deleteChain('b'), of.chain('b', { ...of.PREROUTING, priority: -90 })],
    replies: [],
    commits,
  },
  {
    title: 'translates addresses neither while forwarding nor before connections are known',
    batch: [
      of.chain('b', { ...of.PREROUTING, hooknum: 2 }),
      of.chain('b', { ...of.PREROUTING, priority: -200 }),
    ],
    replies: ['2 EOPNOTSUPP', '3 EOPNOTSUPP'],
  },
  {
    title: 'does not find a missing chain to delete',
    batch: [of.deleteChain('nope')],
    replies: ['2 ENOENT @28'],
  },
  {
    title: 'does not find a missing chain to empty',
    batch: [of.flushChain('nope')],
    replies: ['2 ENOENT @28'],
  },
  {
    title: 'deletes a chain together with its rules',
    given: [of.chain('c'), of.rule('c', of.counter())],
    batch: [of.deleteChain('c')],
    replies: [],
    commits,
  },
  {
    title: 'keeps a chain that a rule jumps to',
    given: [of.chain('c'), of.chain('d'), of.rule('d', of.jump('c'))],
    batch: [of.deleteChain('c')],
    replies: ['2 EBUSY @28'],
  },
  {
    title: 'keeps a chain that an element leads to',
    given: [of.chain('c'), of.set('v', of.VERDICT_MAP), of.add('v', { key: 1, to: 'c' })],
    batch: [of.deleteChain('c')],
    replies: ['2 EBUSY @28'],
  },
]

const ofRules: readonly Case[] = [
  {
    title: 'does not find the chain of a rule',
    batch: [of.rule('nope', of.counter())],
    replies: ['2 ENOENT @28'],
  },
  {
    title: 'points at the expression that jumps to a missing chain',
    given: [of.chain('c')],
    batch: [of.rule('c', of.counter(), of.goTo('nope'))],
    replies: ['2 ENOENT @60'],
  },
  {
    title: 'refuses a jump to a base chain',
    given: [of.chain('c'), of.chain('b', of.PREROUTING)],
    batch: [of.rule('c', of.goTo('b'))],
    replies: ['2 EOPNOTSUPP @40'],
  },
  {
    title: 'points at the expression that looks into a missing set',
    given: [of.chain('c')],
    batch: [of.rule('c', of.daddr(0), of.lookup('nope', 0))],
    replies: ['2 ENOENT @92'],
  },
  {
    title: 'refuses an expression that it does not know',
    given: [of.chain('c')],
    batch: [of.rule('c', of.counter(), of.unknownExpression())],
    replies: ['2 ENOENT @60'],
  },
  {
    title: 'refuses to read a register that nothing wrote',
    given: [of.chain('c')],
    batch: [of.rule('c', of.counter(), of.compare(3, 'abcd'))],
    replies: ['2 ENODATA @60'],
  },
  {
    title: 'refuses a data lookup in a plain set, and a verdict lookup in a data map',
    given: [of.chain('c'), of.set('s'), of.set('m', of.MAP)],
    batch: [
      of.rule('c', of.daddr(0), of.lookup('s', 0, 1)),
      of.rule('c', of.daddr(0), of.lookup('m', 0, 'verdict')),
    ],
    replies: ['2 EINVAL @92', '3 EINVAL @92'],
  },
  {
    title: 'tests membership in a map',
    given: [of.chain('c'), of.set('m', of.MAP)],
    batch: [of.rule('c', of.daddr(0), of.lookup('m', 0))],
    replies: [],
    commits,
  },
  {
    title: 'refuses what only works at another hook, once it is reached from there',
    given: [
      of.chain('d'),
      of.rule('d', of.daddr(0), of.dport(1), of.dnat(0, 1)),
      of.chain('post', of.POSTROUTING),
      of.chain('f', of.FILTER),
    ],
    batch: [of.rule('post', of.jump('d')), of.flushChain('post'), of.rule('f', of.jump('d'))],
    replies: ['2 EOPNOTSUPP', '4 EOPNOTSUPP'],
  },
  {
    title: 'masquerades after routing only',
    given: [of.chain('b', of.PREROUTING)],
    batch: [of.rule('b', of.masquerade())],
    replies: ['2 EOPNOTSUPP'],
  },
  {
    title: 'finds a loop of chains when it is hooked up, at every message from then on',
    given: [
      of.chain('b', of.PREROUTING),
      of.chain('x'),
      of.chain('y'),
      of.rule('x', of.goTo('y')),
      of.rule('y', of.goTo('x')),
    ],
    batch: [of.chain('z'), of.rule('b', of.jump('x')), of.rule('b', of.counter())],
    replies: ['3 EMLINK', '4 EMLINK'],
  },
  {
    title: 'finds a loop that an element closes',
    given: [
      of.chain('b', of.PREROUTING),
      of.chain('x'),
      of.set('v', of.VERDICT_MAP),
      of.rule('b', of.jump('x')),
      of.rule('x', of.daddr(0), of.lookup('v', 0, 'verdict')),
    ],
    batch: [of.add('v', { key: 1, to: 'x' }), of.chain('z')],
    replies: ['2 EMLINK'],
  },
  {
    title: 'goes through 15 chains from a base chain',
    given: deep(15),
    batch: [of.rule('b', of.jump('d0'))],
    replies: [],
    commits,
  },
  {
    title: 'does not go through 16 chains from a base chain',
    given: deep(16),
    batch: [of.rule('b', of.jump('d0'))],
    replies: ['2 EMLINK'],
  },
]

function deep(chains: number): readonly Raw[] {
  const names = Array.from({ length: chains }, (_, i) => `d${i}`)
  const jumps = names.slice(1).map((name, i) => of.rule(`d${i}`, of.goTo(name)))
  return [of.chain('b', of.PREROUTING), ...names.map(name => of.chain(name)), ...jumps]
}

const ofSets: readonly Case[] = [
  {
    title: 'adds a set that is there already, in a new generation',
    given: [of.set('s')],
    batch: [of.set('s')],
    replies: [],
    commits,
  },
  {
    title: 'takes another size for a set',
    given: [of.set('s', { size: 2 })],
    batch: [of.set('s', { size: 3 })],
    replies: [],
    commits,
  },
  {
    title: 'refuses to declare a set with other flags or another key length',
    given: [of.set('s')],
    batch: [of.set('s', { flags: of.SET_TIMEOUT }), of.set('s', { keyLength: 8 })],
    replies: ['2 EEXIST @28', '3 EEXIST @28'],
  },
  { title: 'refuses a set name of 256 bytes', batch: [of.set(`${LONGEST}n`)], replies: ['2 ERANGE @28'] },
  { title: 'refuses a set without an id', batch: [of.set('s', { withoutId: true })], replies: ['2 EINVAL'] },
  {
    title: 'refuses a key of more than 64 bytes',
    batch: [of.set('s', { keyLength: 65 })],
    replies: ['2 EINVAL'],
  },
  {
    title: 'refuses a timeout for a set that has none',
    batch: [of.set('s', { timeoutMs: 10 })],
    replies: ['2 EINVAL'],
  },
  {
    title: 'does not declare a set that is not to be created',
    batch: [of.set('s', { createFlags: 0 })],
    replies: ['2 ENOENT'],
  },
  {
    title: 'does not find a missing set to delete',
    batch: [of.deleteSet('nope')],
    replies: ['2 ENOENT @28'],
  },
  {
    title: 'keeps a set that a rule looks into',
    given: [of.chain('c'), of.set('s'), of.rule('c', of.daddr(0), of.lookup('s', 0))],
    batch: [of.deleteSet('s')],
    replies: ['2 EBUSY @28'],
  },
  {
    title: 'deletes a set with its elements',
    given: [of.set('s'), of.add('s', { key: 1 })],
    batch: [of.deleteSet('s')],
    replies: [],
    commits,
  },
]

const MAP_OF_TWO = [of.set('m', of.MAP), of.add('m', { key: 1, data: 'aaaa' }, { key: 2, data: 'bbbb' })]
const FULL_SET = [of.set('s', { size: 2 }), of.add('s', { key: 1 }, { key: 2 })]

const ofElements: readonly Case[] = [
  {
    title: 'adds an element that is there already, without a new generation',
    given: MAP_OF_TWO,
    batch: [of.add('m', { key: 1, data: 'aaaa' })],
    replies: [],
  },
  {
    title: 'keeps the comment of an element that is there already',
    given: MAP_OF_TWO,
    batch: [of.add('m', { key: 1, data: 'aaaa', comment: 'other' })],
    replies: [],
  },
  {
    title: 'points at the element whose key is there with other data',
    given: MAP_OF_TWO,
    batch: [of.add('m', { key: 3, data: 'cccc' }, { key: 2, data: 'cccc' })],
    replies: ['2 EEXIST @68'],
  },
  {
    title: 'refuses to create an element twice, even within a message',
    given: MAP_OF_TWO,
    batch: [
      { ...of.add('m', { key: 3, data: 'cccc' }, { key: 3, data: 'cccc' }), flags: REQUEST | CREATE | EXCL },
    ],
    replies: ['2 EEXIST @68'],
  },
  {
    title: 'replaces the data of a key that is deleted first',
    given: MAP_OF_TWO,
    batch: [of.remove('m', { key: 2 }), of.add('m', { key: 2, data: 'cccc' })],
    replies: [],
    commits,
  },
  {
    title: 'does not replace the data of a key that is deleted afterwards',
    given: MAP_OF_TWO,
    batch: [of.add('m', { key: 2, data: 'cccc' }), of.remove('m', { key: 2 })],
    replies: ['2 EEXIST @40'],
  },
  {
    title: 'points at the element to delete that is missing',
    given: MAP_OF_TWO,
    batch: [of.remove('m', { key: 1 }, { key: 77 })],
    replies: ['2 ENOENT @56'],
  },
  {
    title: 'does not find the set of an element',
    batch: [of.add('nope', { key: 1 })],
    replies: ['2 ENOENT @28'],
  },
  { title: 'empties a set', given: MAP_OF_TWO, batch: [of.flushSet('m')], replies: [], commits },
  {
    title: 'refuses an element more than the set holds',
    given: FULL_SET,
    batch: [of.add('s', { key: 3 })],
    replies: ['2 ENFILE @40'],
  },
  {
    title: 'takes an element again that a full set holds',
    given: FULL_SET,
    batch: [of.add('s', { key: 2 })],
    replies: [],
  },
  {
    title: 'counts a full set after the deletes that came before',
    given: FULL_SET,
    batch: [of.remove('s', { key: 1 }), of.add('s', { key: 3 })],
    replies: [],
    commits,
  },
  {
    title: 'counts a full set without the deletes that come after',
    given: FULL_SET,
    batch: [of.add('s', { key: 3 }), of.remove('s', { key: 1 })],
    replies: ['2 ENFILE @40'],
  },
  {
    title: 'refuses elements that do not have the shape of their set',
    given: [of.set('s'), of.set('m', of.MAP), of.set('v', of.VERDICT_MAP), of.chain('c')],
    batch: [
      of.add('m', { key: 1 }),
      of.add('s', { key: 1, data: 'aaaa' }),
      of.add('m', { key: 1, data: 'aa' }),
      of.add('m', { key: 'ab', data: 'aaaa' }),
      of.add('m', { key: 1, to: 'c' }),
      of.add('v', { key: 1, data: 'aaaa' }),
    ],
    replies: [2, 3, 4, 5, 6, 7].map(number => `${number} EINVAL @40`),
  },
  {
    title: 'points at the element that leads to a missing chain',
    given: [of.set('v', of.VERDICT_MAP)],
    batch: [of.add('v', { key: 1, to: 'drop' }, { key: 2, to: 'nope' })],
    replies: ['2 ENOENT @72'],
  },
  {
    title: 'refuses an element that leads to a base chain',
    given: [of.set('v', of.VERDICT_MAP), of.chain('b', of.PREROUTING)],
    batch: [of.add('v', { key: 1, to: 'b' })],
    replies: ['2 EOPNOTSUPP @40'],
  },
  {
    title: 'compares verdicts with their chains',
    given: [of.set('v', of.VERDICT_MAP), of.chain('c'), of.add('v', { key: 1, to: 'c' })],
    batch: [of.add('v', { key: 1, to: 'c' }), of.add('v', { key: 1, to: 'drop' })],
    replies: ['3 EEXIST @40'],
  },
]

const TIMED: of.SetShape = { flags: of.SET_TIMEOUT, timeoutMs: 60_000 }

const ofTimeouts: readonly Case[] = [
  {
    title: 'refuses a timeout in a set without them',
    given: [of.set('s')],
    batch: [of.add('s', { key: 1, timeoutMs: 100 })],
    replies: ['2 EINVAL @40'],
  },
  {
    title: 'takes the time that an element has left',
    given: [of.set('s', TIMED)],
    batch: [of.add('s', { key: 1, expirationMs: 500 })],
    replies: [],
    commits,
  },
  {
    title: 'refuses more time left than the timeout',
    given: [of.set('s', TIMED)],
    batch: [of.add('s', { key: 1, expirationMs: 70_000 })],
    replies: ['2 ERANGE @40'],
  },
  {
    title: 'takes more time left than the timeout of the set with a timeout of its own',
    given: [of.set('s', TIMED)],
    batch: [of.add('s', { key: 1, timeoutMs: 90_000, expirationMs: 90_000 })],
    replies: [],
    commits,
  },
]

const ofBatches: readonly Case[] = [
  { title: 'takes an empty batch, without a new generation', batch: [], replies: [] },
  {
    title: 'reports every message that fails, and undoes the others',
    given: [of.set('s')],
    batch: [
      of.chain('good'),
      of.deleteChain('nope'),
      of.add('s', { key: 1 }),
      of.deleteSet('nope'),
      of.flushChain('nope'),
    ],
    replies: ['3 ENOENT @28', '5 ENOENT @28', '6 ENOENT @28'],
  },
  {
    title: 'refuses a message that is no request, is of another subsystem, unknown, or only reads',
    batch: [
      { ...of.chain('z'), flags: CREATE },
      { ...of.chain('z'), type: (1 << 8) | MSG.newChain },
      { ...of.chain('z'), type: (10 << 8) | 99 },
      nft(MSG.getChain, 0, str(1, 't'), str(3, 'z')),
    ],
    replies: ['2 EINVAL', '3 EINVAL', '4 EINVAL', '5 EINVAL'],
  },
  {
    title: 'drops a batch within a batch without a word',
    batch: [of.chain('z'), { type: 0x10, flags: REQUEST, family: 0, body: Buffer.alloc(0) }, of.chain('y')],
    replies: [],
  },
  {
    title: 'refuses a message whose table is not named',
    batch: [nft(MSG.newChain, CREATE, str(3, 'z'))],
    replies: ['2 EINVAL'],
  },
  {
    title: 'takes a rule without expressions',
    given: [of.chain('c')],
    batch: [nft(MSG.newRule, CREATE, str(1, 't'), str(2, 'c'), u32(99, 0))],
    replies: [],
    commits,
  },
]

export const CASES: readonly Case[] = [
  ...ofTables,
  ...ofChains,
  ...ofRules,
  ...ofSets,
  ...ofElements,
  ...ofTimeouts,
  ...ofBatches,
]
