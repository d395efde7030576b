import { answers, type Case, takes } from './case.ts'
import * as of from './objects.ts'
import { CREATE, EXCL, REQUEST } from './wire.ts'

const LONGEST = 'n'.repeat(255)

const ofSets: readonly Case[] = [
  answers(
    'refuses to declare a set with other flags or another key length',
    ['2 EEXIST @28', '3 EEXIST @28'],
    {
      given: [of.set('s')],
      batch: [of.set('s', { flags: of.SET_TIMEOUT }), of.set('s', { keyLength: 8 })],
    },
  ),
  {
    title: 'refuses a set name of 256 bytes',
    batch: [of.set(`${LONGEST}n`)],
    replies: ['2 ERANGE @28'],
    older: { upTo: [6, 12], replies: ['2 ERANGE'] },
  },
  answers('refuses a set without an id', ['2 EINVAL'], { batch: [of.set('s', { withoutId: true })] }),
  answers('refuses a key of more than 64 bytes', ['2 EINVAL'], {
    batch: [of.set('s', { keyLength: 65 })],
  }),
  answers('refuses a timeout for a set that has none', ['2 EINVAL'], {
    batch: [of.set('s', { timeoutMs: 10 })],
  }),
  answers('does not declare a set that is not to be created', ['2 ENOENT'], {
    batch: [of.set('s', { createFlags: 0 })],
  }),
  answers('does not find a missing set to delete', ['2 ENOENT @28'], {
    batch: [of.deleteSet('nope')],
  }),
  answers('keeps a set that a rule looks into', ['2 EBUSY @28'], {
    given: [of.chain('c'), of.set('s'), of.rule('c', of.daddr(0), of.lookup('s', 0))],
    batch: [of.deleteSet('s')],
  }),
  takes('deletes a set with its elements', [of.deleteSet('s')], [of.set('s'), of.add('s', { key: 1 })]),
]

const MAP_OF_TWO = [of.set('m', of.MAP), of.add('m', { key: 1, data: 'aaaa' }, { key: 2, data: 'bbbb' })]
const FULL_SET = [of.set('s', { size: 2 }), of.add('s', { key: 1 }, { key: 2 })]

const ofElements: readonly Case[] = [
  answers('adds an element that is there already, without a new generation', [], {
    given: MAP_OF_TWO,
    batch: [of.add('m', { key: 1, data: 'aaaa' })],
  }),
  answers('keeps the comment of an element that is there already', [], {
    given: MAP_OF_TWO,
    batch: [of.add('m', { key: 1, data: 'aaaa', comment: 'other' })],
  }),
  answers('points at the element whose key is there with other data', ['2 EEXIST @68'], {
    given: MAP_OF_TWO,
    batch: [of.add('m', { key: 3, data: 'cccc' }, { key: 2, data: 'cccc' })],
  }),
  answers('refuses to create an element twice, even within a message', ['2 EEXIST @68'], {
    given: MAP_OF_TWO,
    batch: [
      { ...of.add('m', { key: 3, data: 'cccc' }, { key: 3, data: 'cccc' }), flags: REQUEST | CREATE | EXCL },
    ],
  }),
  takes(
    'replaces the data of a key that is deleted first',
    [of.remove('m', { key: 2 }), of.add('m', { key: 2, data: 'cccc' })],
    MAP_OF_TWO,
  ),
  answers('does not replace the data of a key that is deleted afterwards', ['2 EEXIST @40'], {
    given: MAP_OF_TWO,
    batch: [of.add('m', { key: 2, data: 'cccc' }), of.remove('m', { key: 2 })],
  }),
  answers('points at the element to delete that is missing', ['2 ENOENT @56'], {
    given: MAP_OF_TWO,
    batch: [of.remove('m', { key: 1 }, { key: 77 })],
  }),
  {
    title: 'does not find the set of an element',
    batch: [of.add('nope', { key: 1 })],
    replies: ['2 ENOENT @28'],
    older: { upTo: [6, 1], replies: ['2 ENOENT'] },
  },
  takes('empties a set', [of.flushSet('m')], MAP_OF_TWO),
  answers('refuses an element more than the set holds', ['2 ENFILE @40'], {
    given: FULL_SET,
    batch: [of.add('s', { key: 3 })],
  }),
  answers('takes an element again that a full set holds', [], {
    given: FULL_SET,
    batch: [of.add('s', { key: 2 })],
  }),
  takes(
    'counts a full set after the deletes that came before',
    [of.remove('s', { key: 1 }), of.add('s', { key: 3 })],
    FULL_SET,
  ),
  answers('counts a full set without the deletes that come after', ['2 ENFILE @40'], {
    given: FULL_SET,
    batch: [of.add('s', { key: 3 }), of.remove('s', { key: 1 })],
  }),
  answers(
    'refuses elements that do not have the shape of their set',
    [2, 3, 4, 5, 6, 7].map(number => `${number} EINVAL @40`),
    {
      given: [of.set('s'), of.set('m', of.MAP), of.set('v', of.VERDICT_MAP), of.chain('c')],
      batch: [
        of.add('m', { key: 1 }),
        of.add('s', { key: 1, data: 'aaaa' }),
        of.add('m', { key: 1, data: 'aa' }),
        of.add('m', { key: 'ab', data: 'aaaa' }),
        of.add('m', { key: 1, to: 'c' }),
        of.add('v', { key: 1, data: 'aaaa' }),
      ],
    },
  ),
  answers('points at the element that leads to a missing chain', ['2 ENOENT @72'], {
    given: [of.set('v', of.VERDICT_MAP)],
    batch: [of.add('v', { key: 1, to: 'drop' }, { key: 2, to: 'nope' })],
  }),
  answers('refuses an element that leads to a base chain', ['2 EOPNOTSUPP @40'], {
    given: [of.set('v', of.VERDICT_MAP), of.chain('b', of.PREROUTING)],
    batch: [of.add('v', { key: 1, to: 'b' })],
  }),
  answers('compares verdicts with their chains', ['3 EEXIST @40'], {
    given: [of.set('v', of.VERDICT_MAP), of.chain('c'), of.add('v', { key: 1, to: 'c' })],
    batch: [of.add('v', { key: 1, to: 'c' }), of.add('v', { key: 1, to: 'drop' })],
  }),
]

const TIMED: of.SetShape = { flags: of.SET_TIMEOUT, timeoutMs: 60_000 }

const ofTimeouts: readonly Case[] = [
  answers('refuses a timeout in a set without them', ['2 EINVAL @40'], {
    given: [of.set('s')],
    batch: [of.add('s', { key: 1, timeoutMs: 100 })],
  }),
  takes(
    'takes the time that an element has left',
    [of.add('s', { key: 1, expirationMs: 500 })],
    [of.set('s', TIMED)],
  ),
  answers('refuses more time left than the timeout', ['2 ERANGE @40'], {
    given: [of.set('s', TIMED)],
    batch: [of.add('s', { key: 1, expirationMs: 70_000 })],
  }),
  takes(
    'takes more time left than the timeout of the set with a timeout of its own',
    [of.add('s', { key: 1, timeoutMs: 90_000, expirationMs: 90_000 })],
    [of.set('s', TIMED)],
  ),
]

export const ELEMENT_CASES: readonly Case[] = [...ofSets, ...ofElements, ...ofTimeouts]
