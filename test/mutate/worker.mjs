// The judge in a thread of its own: a mutation may loop for ever.
import { parentPort, workerData } from 'node:worker_threads'

const { file, atLoad } = workerData
/** In one step: a hundred times of what the largest scenario takes. */
const TURNS_MAX = 5_000_000
let turns = 0
globalThis.countTurnsAnew = () => {
  turns = 0
}
/** Stands in each loop of the sources: see sites.ts. */
globalThis.turn = () => {
  if (++turns > TURNS_MAX) throw new Error(`a loop without an end: more than ${TURNS_MAX} turns`)
}
// What is evaluated when modules are loaded is evaluated once.
globalThis.mutant = number => number === atLoad
const judge = await import(file)
const ACTS = {
  original: ({ modes }) => judge.original(modes),
  judge: ({ asked, original }) => judge.judge(asked, original),
  conclude: ({ proved }) => judge.concluded(proved, judge.seenAt(proved.accepted.keys())),
}
parentPort.on('message', ({ act, ...given }) => {
  globalThis.countTurnsAnew()
  parentPort.postMessage(ACTS[act](given))
})
