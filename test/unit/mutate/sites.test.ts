import { transformSync } from 'esbuild'
import { expect, test } from 'vitest'
import {
  chosenByLine,
  chosenFrom,
  mutationsOf,
  withCountedLoops,
  withMutation,
  withSwitches,
} from '../../mutate/sites.ts'

const SOURCE = `
const MODE_A = 'a'
const MODE_B = 'b'
const START = 10
function run(list: readonly number[], isOn: boolean): string {
  const kept = list.filter(each => each > 1 && isOn)
  if (kept.length === 0) return MODE_A + list
  const out = [...kept, START]
  out.push(3)
  const all = { first: 'eq', ...(isOn ? { second: out.length - 1 } : {}) }
  return JSON.stringify([list, Math.pow(kept.length, 3), out, all, MODE_B, !isOn, list ?? kept ?? out])
}
globalThis.result = [run([1, 2, 3], true), run([4], false)].join()
`
const RESULT = '[[1,2,3],8,[2,3,10,3],{"first":"eq","second":3},"b",false,[1,2,3]],a4'

const all = chosenFrom(mutationsOf('run.ts', SOURCE), { seed: 1, count: 1_000 })
const { code } = transformSync(withSwitches(SOURCE, all), { loader: 'ts' })

/** Gives what the program says while one mutation counts; undefined for none. */
function resultOf(number: number | undefined): unknown {
  const around = { mutant: (its: number) => its === number, result: undefined }
  try {
    new Function('globalThis', code)(around)
  } catch (error) {
    return error
  }
  return around.result
}

test('a program with all mutations in it does what it did while none counts', () => {
  expect(resultOf(undefined)).toBe(RESULT)
})

test('each mutation changes what the program does, alone', () => {
  const kinds = new Set(all.map(({ kind }) => kind))
  expect([...kinds].sort()).toEqual([
    'arguments swapped',
    'boolean',
    'constant',
    'element gone',
    'filter gone',
    'negated',
    'number',
    'operator',
    'spread gone',
    'statement gone',
    'word',
  ])
  const same = all.filter(({ number }) => resultOf(number) === RESULT)
  expect(same.map(({ before, after }) => `${before} -> ${after}`)).toEqual([])
})

test('a seed chooses the same mutations again, each once and all kinds alike', () => {
  const choose = (seed: number) =>
    chosenFrom(all, { seed, count: 12 }).map(({ start, after }) => `${start} ${after}`)
  expect(choose(7)).toEqual(choose(7))
  expect(choose(7)).not.toEqual(choose(8))
  expect(new Set(choose(7)).size).toBe(12)
})

test('a change of another file or place does not change what a seed chooses', () => {
  const choose = (text: string) =>
    chosenFrom([...mutationsOf('other.ts', 'run(1, 2)'), ...mutationsOf('run.ts', text)], {
      seed: 7,
      count: 12,
    })
      .filter(({ path }) => path === 'run.ts')
      .map(({ before, after }) => `${before} ${after}`)
  const its = choose(`export const more = 1\n${SOURCE}`).filter(text => text !== '1 (2)')
  expect(its.length).toBeGreaterThan(8)
  expect(choose(SOURCE)).toEqual(expect.arrayContaining(its))
})

test('a mutation alone in the text does what it does behind its switch', () => {
  for (const its of all) {
    const around = { result: undefined }
    const { code } = transformSync(withMutation(SOURCE, its), { loader: 'ts' })
    const run = () => {
      try {
        new Function('globalThis', code)(around)
      } catch (error) {
        return error
      }
      return around.result
    }
    expect([its.before, run()]).toEqual([its.before, resultOf(its.number)])
  }
})

test('lines are chosen by the share of their file, and nearly the same ones when another file grows', () => {
  const file = (path: string, lines: number) =>
    mutationsOf(path, Array.from({ length: lines }, (_, at) => `call(${at})`).join('\n'))
  const [before, after] = [400, 420].map(lines =>
    chosenByLine([...file('a.ts', 100), ...file('b.ts', lines)], { seed: 3, count: 50 }),
  )
  expect(before?.filter(({ path }) => path === 'a.ts')).toHaveLength(10)
  const near = before?.filter(({ line }, at) => Math.abs(line - (after?.[at]?.line ?? 0)) <= 20)
  expect(near).toHaveLength(50)
})

test('a loop of any form counts its turns, and goes on as it did', () => {
  const source = `
const seen: number[] = []
for (const each of [1, 2]) for (let i = 0; i < each; i++) seen.push(i)
for (const key in { a: 1 }) if (key === 'a') seen.push(7)
while (seen.length < 6) { seen.push(8) }
do seen.push(9)
while (seen.length < 8)
globalThis.result = seen.join()
`
  const around = { turns: 0, turn: () => around.turns++, result: undefined }
  const { code } = transformSync(withCountedLoops(source), { loader: 'ts' })
  new Function('globalThis', code)(around)
  expect(around).toMatchObject({ result: '0,0,1,7,8,8,9,9', turns: 2 + 3 + 1 + 2 + 2 })
})
