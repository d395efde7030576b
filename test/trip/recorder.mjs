// Loaded into kprobe by --import: counts the functions that run until a datagram is sent.
import { Session } from 'node:inspector'
import { createRequire } from 'node:module'

const session = new Session()
session.connect()
session.post('Profiler.enable')
session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false })

/** Names and starts of the functions in the bundle that ran since the last call. */
function takeFunctions() {
  let functions = []
  session.post('Profiler.takePreciseCoverage', (error, answer) => {
    if (error !== null) throw error
    functions = answer.result
      .filter(({ url }) => url.endsWith(process.env.KPROBE_TRIP_BUNDLE))
      .flatMap(({ functions }) => functions)
      .filter(({ ranges: [range] }) => range.count > 0)
      .map(({ functionName: name, ranges: [{ startOffset: offset }] }) => ({ name, offset }))
  })
  return functions
}

let isArmed = false
const require = createRequire(import.meta.url)
const addon = require(process.env.KPROBE_TRIP_ADDON)
// An addon's exports are read-only and not enumerable: a later require gets an object with the same names.
const copy = Object.fromEntries(Object.getOwnPropertyNames(addon).map(name => [name, addon[name]]))
require.cache[process.env.KPROBE_TRIP_ADDON].exports = copy
for (const name of ['send', 'sendSync']) {
  const send = addon[name]
  copy[name] = (handle, datagram) => {
    // A datagram without a message asks for the generation or for an acknowledgement: its payload is short.
    if (isArmed && datagram.length >= Number(process.env.KPROBE_TRIP_BYTES_MIN)) {
      isArmed = false
      process.send({ functions: takeFunctions(), bytes: datagram.length })
    }
    return send(handle, datagram)
  }
}

process.on('message', () => {
  takeFunctions()
  isArmed = true
  process.send({ armed: true })
})
