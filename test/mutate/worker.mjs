// The judge in a thread of its own: a mutation may loop for ever.
import { parentPort, workerData } from 'node:worker_threads'

const { file, atLoad } = workerData
// What is evaluated when modules are loaded is evaluated once.
globalThis.mutant = number => number === atLoad
const judge = await import(file)
const ACTS = {
  original: ({ modes }) => judge.original(modes),
  judge: ({ asked, original }) => judge.judge(asked, original),
  conclude: ({ proved }) => judge.concluded(proved, judge.seenAt(proved.accepted.keys())),
}
parentPort.on('message', ({ act, ...given }) => parentPort.postMessage(ACTS[act](given)))
