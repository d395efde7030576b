import { readFileSync } from 'node:fs'
import { isDeepStrictEqual } from 'node:util'
import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { WireError } from '../../src/base/errors.ts'
import { parseObject } from '../../src/model/parse.ts'
import { readStatus } from '../../src/source/kube/wire/encodings.ts'
import type { ApiKind, ApiObject } from '../../src/source/kube/wire/tables.ts'
import { createRandom, type Random } from '../support/apiserver/random.ts'
import { change, compute } from '../support/pipeline.ts'
import { runs } from '../support/runs.ts'
import { API_OBJECTS, KINDS, pieces } from '../unit/source/kube/wire/api-arbitraries.ts'
import {
  type BodyType,
  eventBytes,
  JSON_TYPE,
  listBody,
  PROTOBUF,
  readList,
  readWatch,
  TYPES,
  wired,
} from '../unit/source/kube/wire/bodies.ts'
import { expectHeld, many, rounds, SEED, Tally } from './attack.ts'
import { complaintsOf, extentOf } from './model-invariants.ts'
import { type Body, mutated } from './wire-mutations.ts'

const MUTATIONS = many(runs(6_000), 1_000_000)
/** Mutations whose cut form is read as well, and mutations that the model and its renderer go through: one of so many. */
const CUT_EVERY = 4
const RENDER_EVERY = many(20, 200)
/**
 * Of a decoder's result per octet, and what small bodies may have besides. An empty item is two octets of protobuf and
 * gets a kind and an apiVersion; a time of four octets is a text of twenty.
 */
const VALUES_PER_OCTET = 2
const CHARACTERS_PER_OCTET = 24
const ALLOWED_ANYWAY = 200

interface Sample extends Body {
  readonly kind: ApiKind
  readonly type: BodyType
}

/** The bytes that Go's own serializers wrote. */
function recorded(): readonly Sample[] {
  const url = new URL('../unit/source/kube/wire/go-serializers.json', import.meta.url)
  const all: readonly {
    readonly name: string
    readonly protobuf: string
    readonly json: { readonly kind?: string }
  }[] = JSON.parse(readFileSync(url, 'utf8'))
  return all.flatMap(({ name, protobuf, json }) => {
    const isWatch = name === 'watch'
    const kind = KINDS.find(kind => isWatch || json.kind === `${kind}List`)
    if (kind === undefined) return []
    const text = Array.isArray(json)
      ? json.map(event => `${JSON.stringify(event)}\n`).join('')
      : JSON.stringify(json)
    const both = { kind, isWatch }
    return [
      { ...both, type: PROTOBUF, encoding: 'protobuf', bytes: Buffer.from(protobuf, 'base64') },
      { ...both, type: JSON_TYPE, encoding: 'json', bytes: Buffer.from(text) },
    ] as const
  })
}

/** Lists and watches of random objects in both encodings. */
function made(): readonly Sample[] {
  return KINDS.flatMap(kind =>
    TYPES.flatMap(type => {
      const encoding = type === PROTOBUF ? 'protobuf' : 'json'
      return [2, 3, 4].flatMap(count => {
        const objects = fc.sample(API_OBJECTS[kind], { numRuns: count, seed: SEED + count })
        const events = objects.map(object => eventBytes(type, { type: 'ADDED', object }))
        const both = { kind, type, encoding } as const
        return [
          { ...both, isWatch: false, bytes: listBody(type, kind, objects) },
          { ...both, isWatch: true, bytes: Buffer.concat(events) },
        ]
      })
    }),
  )
}

const CORPUS = [...recorded(), ...made()]

function objectsIn({ type, kind, isWatch }: Sample, parts: Iterable<Uint8Array>, details: boolean) {
  return wired((): readonly ApiObject[] =>
    isWatch
      ? readWatch(type, parts, { kind, details }).map(({ object }) => object)
      : readList(type, parts, { kind, details }).items,
  )
}

/** What does not hold of one mutation. */
function complaintsAbout(sample: Sample, bytes: Buffer, random: Random, tally: Tally): readonly string[] {
  const details = random.chance(0.2)
  const read = objectsIn(sample, [bytes], details)
  const isRefused = read instanceof WireError
  tally.add(isRefused ? 'refused' : 'read')
  if (random.int(1, CUT_EVERY) === 1) {
    const cut = objectsIn(sample, pieces(bytes, [random.int(1, 97), random.int(1, 400)]), details)
    tally.add('read in pieces')
    if (isRefused !== cut instanceof WireError || (!isRefused && !isDeepStrictEqual(read, cut)))
      return ['pieces say something else']
  }
  if (isRefused) return read.message.length > 300 ? ['a long message'] : []
  const { values, characters } = extentOf(read)
  tally.most('most values of one body', values)
  if (values > VALUES_PER_OCTET * bytes.length + ALLOWED_ANYWAY) return [`${values} values`]
  if (characters > CHARACTERS_PER_OCTET * bytes.length + ALLOWED_ANYWAY) return [`${characters} characters`]
  const complaints = read.flatMap(object => complaintsOf(parseObject(object, undefined, { details })))
  if (random.int(1, RENDER_EVERY) === 1) {
    tally.add('rendered')
    change(compute({}, []), { objects: read })
  }
  return complaints
}

/** One mutation, and what to know about it where something does not hold. */
function attack(index: number, tally: Tally): readonly string[] {
  const random = createRandom(SEED * 1_000_003 + index)
  const [sample, other] = [random.pick(CORPUS), random.pick(CORPUS)]
  const bytes = mutated(sample, random, other.bytes)
  const where = () =>
    `mutation ${index} of seed ${SEED}: ${sample.kind}, ${sample.encoding}, ${sample.isWatch ? 'watch' : 'list'}, ${bytes.toString('base64').slice(0, 4_000)}`
  tally.add('octets', bytes.length)
  try {
    const beganMs = performance.now()
    const complaints = complaintsAbout(sample, bytes, random, tally)
    tally.most('slowest mutation, ms', Math.ceil(performance.now() - beganMs))
    readStatus(sample.type, bytes)
    return complaints.map(text => `${text} (${where()})`)
  } catch (error) {
    return [`${error instanceof Error ? error.stack : error} (${where()})`]
  }
}

describe('lists and watch events of the API server', () => {
  it('F144: damaged in any way, are read or refused in proportion to their length, and the model holds what it promises', ({
    task,
  }) => {
    const tally = new Tally(task)
    const complaints: string[] = []
    for (const index of rounds('wire', MUTATIONS)) {
      tally.add('mutations')
      complaints.push(...attack(index, tally))
      if (complaints.length >= 5) break
    }
    expectHeld(complaints)
  })

  it('F144: the corpus itself is read, each body of it', () => {
    expect(CORPUS.length).toBeGreaterThan(50)
    for (const sample of CORPUS) expect(objectsIn(sample, [sample.bytes], true)).not.toBeInstanceOf(WireError)
  })
})

describe('nesting', () => {
  const DEPTH = 100_000
  const KIND = 'Service'
  /** In a field that is read, and in one that nobody reads. */
  const items = ['metadata', 'other'].flatMap(field =>
    [
      ['[', ']'],
      ['{"a":', '}'],
    ].map(([open = '', close = '']) => `{"${field}":${open.repeat(DEPTH)}1${close.repeat(DEPTH)}}`),
  )

  it.each(items.map((item, index) => [index, item] as const))(
    'F144: of 100,000 levels is read or refused, and told of in one line (%i)',
    (_, item) => {
      const list = `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[${item}]}`
      const sample = { kind: KIND, type: JSON_TYPE, encoding: 'json', isWatch: false } as const
      const read = objectsIn({ ...sample, bytes: Buffer.from(list) }, [Buffer.from(list)], true)
      if (read instanceof WireError) return
      expect(read.flatMap(object => complaintsOf(parseObject(object, undefined, { details: true })))).toEqual(
        [],
      )
    },
  )
})
