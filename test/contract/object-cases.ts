import type { Case } from './case.ts'
import * as of from './objects.ts'
import { CREATE, EXCL, MSG, nft, type Raw, REQUEST, str, u32 } from './wire.ts'

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
  {
    title: 'refuses a chain name of 256 bytes',
    batch: [of.chain(`${LONGEST}n`)],
    replies: ['2 ERANGE @28'],
    older: { upTo: [6, 12], replies: ['2 ERANGE'] },
  },
  {
    title: 'refuses to move a base chain to another priority or hook',
    given: [of.chain('b', of.PREROUTING)],
    batch: [
      of.chain('b', { ...of.PREROUTING, priority: -90 }),
      of.chain('b', { ...of.PREROUTING, hooknum: 3 }),
    ],
    replies: ['2 EOPNOTSUPP', '3 EOPNOTSUPP'],
    older: { upTo: [6, 1], replies: ['2 EEXIST @28', '3 EEXIST @28'] },
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
    older: { upTo: [6, 1], replies: [], commits },
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
    older: { upTo: [6, 1], replies: ['2 EINVAL @92'], commits: false },
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
    older: { upTo: [6, 1], replies: ['2 EOPNOTSUPP @44', '4 EOPNOTSUPP @40'] },
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
    older: { upTo: [6, 1], replies: ['3 EMLINK @40'] },
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

export const OBJECT_CASES: readonly Case[] = [...ofTables, ...ofChains, ...ofRules, ...ofBatches]
