import { answers, type Case, takes } from './case.ts'
import * as of from './objects.ts'
import { CREATE, EXCL, MSG, nft, type Raw, REQUEST, str, u32 } from './wire.ts'

const commits = true
const LONGEST = 'n'.repeat(255)

const ofTables: readonly Case[] = [
  answers('adds a table that is there already, without a new generation', [], { batch: [of.table()] }),
  answers('refuses to create a table that is there already', ['2 EEXIST @20'], {
    batch: [nft(MSG.newTable, CREATE | EXCL, str(1, 't'))],
  }),
  answers('refuses table flags it does not know', ['2 EOPNOTSUPP'], { batch: [of.table(0x80)] }),
  answers('names the table that is missing', ['2 ENOENT @20'], {
    batch: [nft(MSG.newChain, CREATE, str(1, 'nope'), str(3, 'c'))],
  }),
  answers('deletes a missing table only after it was added', ['3 ENOENT @20'], {
    batch: [of.deleteTable(), of.deleteTable()],
  }),
  takes(
    'replaces a table in one batch whether or not it is there',
    [of.table(), of.deleteTable(), of.table(), of.chain('c')],
    [of.deleteTable()],
  ),
]

const ofChains: readonly Case[] = [
  takes('adds a chain that is there already, in a new generation', [of.chain('c')], [of.chain('c')]),
  answers('refuses to create a chain that is there already', ['2 EEXIST @28'], {
    given: [of.chain('c')],
    batch: [nft(MSG.newChain, CREATE | EXCL, str(1, 't'), str(3, 'c'))],
  }),
  takes('takes a chain name of 255 bytes', [of.chain(LONGEST)]),
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
  answers('refuses to give a base chain another type', ['2 EEXIST @28'], {
    given: [of.chain('b', of.PREROUTING)],
    batch: [of.chain('b', { ...of.FILTER, priority: -100 })],
  }),
  takes(
    'makes a base chain anew at another priority',
    [of.deleteChain('b'), of.chain('b', { ...of.PREROUTING, priority: -90 })],
    [of.chain('b', of.PREROUTING)],
  ),
  answers(
    'translates addresses neither while forwarding nor before connections are known',
    ['2 EOPNOTSUPP', '3 EOPNOTSUPP'],
    {
      batch: [
        of.chain('b', { ...of.PREROUTING, hooknum: 2 }),
        of.chain('b', { ...of.PREROUTING, priority: -200 }),
      ],
    },
  ),
  answers('does not find a missing chain to delete', ['2 ENOENT @28'], {
    batch: [of.deleteChain('nope')],
  }),
  answers('does not find a missing chain to empty', ['2 ENOENT @28'], {
    batch: [of.flushChain('nope')],
  }),
  takes(
    'deletes a chain together with its rules',
    [of.deleteChain('c')],
    [of.chain('c'), of.rule('c', of.counter())],
  ),
  answers('keeps a chain that a rule jumps to', ['2 EBUSY @28'], {
    given: [of.chain('c'), of.chain('d'), of.rule('d', of.jump('c'))],
    batch: [of.deleteChain('c')],
  }),
  answers('keeps a chain that an element leads to', ['2 EBUSY @28'], {
    given: [of.chain('c'), of.set('v', of.VERDICT_MAP), of.add('v', { key: 1, to: 'c' })],
    batch: [of.deleteChain('c')],
  }),
]

const ofRules: readonly Case[] = [
  answers('does not find the chain of a rule', ['2 ENOENT @28'], {
    batch: [of.rule('nope', of.counter())],
  }),
  answers('points at the expression that jumps to a missing chain', ['2 ENOENT @60'], {
    given: [of.chain('c')],
    batch: [of.rule('c', of.counter(), of.goTo('nope'))],
  }),
  answers('refuses a jump to a base chain', ['2 EOPNOTSUPP @40'], {
    given: [of.chain('c'), of.chain('b', of.PREROUTING)],
    batch: [of.rule('c', of.goTo('b'))],
  }),
  answers('points at the expression that looks into a missing set', ['2 ENOENT @92'], {
    given: [of.chain('c')],
    batch: [of.rule('c', of.daddr(0), of.lookup('nope', 0))],
  }),
  answers('refuses an expression that it does not know', ['2 ENOENT @60'], {
    given: [of.chain('c')],
    batch: [of.rule('c', of.counter(), of.unknownExpression())],
  }),
  {
    title: 'refuses to read a register that nothing wrote',
    given: [of.chain('c')],
    batch: [of.rule('c', of.counter(), of.compare(3, 'abcd'))],
    replies: ['2 ENODATA @60'],
    older: { upTo: [6, 1], replies: [], commits },
  },
  answers(
    'refuses a data lookup in a plain set, and a verdict lookup in a data map',
    ['2 EINVAL @92', '3 EINVAL @92'],
    {
      given: [of.chain('c'), of.set('s'), of.set('m', of.MAP)],
      batch: [
        of.rule('c', of.daddr(0), of.lookup('s', 0, 1)),
        of.rule('c', of.daddr(0), of.lookup('m', 0, 'verdict')),
      ],
    },
  ),
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
  answers('masquerades after routing only', ['2 EOPNOTSUPP'], {
    given: [of.chain('b', of.PREROUTING)],
    batch: [of.rule('b', of.masquerade())],
  }),
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
  answers('finds a loop that an element closes', ['2 EMLINK'], {
    given: [
      of.chain('b', of.PREROUTING),
      of.chain('x'),
      of.set('v', of.VERDICT_MAP),
      of.rule('b', of.jump('x')),
      of.rule('x', of.daddr(0), of.lookup('v', 0, 'verdict')),
    ],
    batch: [of.add('v', { key: 1, to: 'x' }), of.chain('z')],
  }),
  takes('goes through 15 chains from a base chain', [of.rule('b', of.jump('d0'))], deep(15)),
  answers('does not go through 16 chains from a base chain', ['2 EMLINK'], {
    given: deep(16),
    batch: [of.rule('b', of.jump('d0'))],
  }),
]

function deep(chains: number): readonly Raw[] {
  const names = Array.from({ length: chains }, (_, i) => `d${i}`)
  const jumps = names.slice(1).map((name, i) => of.rule(`d${i}`, of.goTo(name)))
  return [of.chain('b', of.PREROUTING), ...names.map(name => of.chain(name)), ...jumps]
}

const ofBatches: readonly Case[] = [
  answers('takes an empty batch, without a new generation', [], { batch: [] }),
  answers(
    'reports every message that fails, and undoes the others',
    ['3 ENOENT @28', '5 ENOENT @28', '6 ENOENT @28'],
    {
      given: [of.set('s')],
      batch: [
        of.chain('good'),
        of.deleteChain('nope'),
        of.add('s', { key: 1 }),
        of.deleteSet('nope'),
        of.flushChain('nope'),
      ],
    },
  ),
  answers(
    'refuses a message that is no request, is of another subsystem, unknown, or only reads',
    ['2 EINVAL', '3 EINVAL', '4 EINVAL', '5 EINVAL'],
    {
      batch: [
        { ...of.chain('z'), flags: CREATE },
        { ...of.chain('z'), type: (1 << 8) | MSG.newChain },
        { ...of.chain('z'), type: (10 << 8) | 99 },
        nft(MSG.getChain, 0, str(1, 't'), str(3, 'z')),
      ],
    },
  ),
  answers('drops a batch within a batch without a word', [], {
    batch: [of.chain('z'), { type: 0x10, flags: REQUEST, family: 0, body: Buffer.alloc(0) }, of.chain('y')],
  }),
  answers('refuses a message whose table is not named', ['2 EINVAL'], {
    batch: [nft(MSG.newChain, CREATE, str(3, 'z'))],
  }),
  takes(
    'takes a rule without expressions',
    [nft(MSG.newRule, CREATE, str(1, 't'), str(2, 'c'), u32(99, 0))],
    [of.chain('c')],
  ),
]

export const OBJECT_CASES: readonly Case[] = [...ofTables, ...ofChains, ...ofRules, ...ofBatches]
