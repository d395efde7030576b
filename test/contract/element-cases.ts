import type { Case } from './case.ts'
import * as of from './objects.ts'
import { CREATE, EXCL, REQUEST } from './wire.ts'

const commits = true
const LONGEST = 'n'.repeat(255)

const ofSets: readonly Case[] = [
  {
    title: 'refuses to declare a set with other flags or another key length',
    given: [of.set('s')],
    batch: [of.set('s', { flags: of.SET_TIMEOUT }), of.set('s', { keyLength: 8 })],
    replies: ['2 EEXIST @28', '3 EEXIST @28'],
  },
  {
    title: 'refuses a set name of 256 bytes',
    batch: [of.set(`${LONGEST}n`)],
    replies: ['2 ERANGE @28'],
    older: { upTo: [6, 12], replies: ['2 ERANGE'] },
  },
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
    older: { upTo: [6, 1], replies: ['2 ENOENT'] },
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

export const ELEMENT_CASES: readonly Case[] = [...ofSets, ...ofElements, ...ofTimeouts]
