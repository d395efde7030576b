import { afterEach, expect, it } from 'vitest'
import { systemClock } from '../../../../../src/base/clock.ts'
import { openExecClient } from '../../../../../src/source/kube/client/exec-stream.ts'
import { type ExecAnswer, ExecServer, frame } from '../../../../support/exec-server.ts'
import { failureOf, loopback } from './loopback.ts'

const rig = loopback()
let server: ExecServer | undefined

afterEach(() => server?.close())

const OUTPUT_BYTES_MAX = 300

/** Runs a command at a server that answers with this, and prints 300 bytes at most. */
async function run(answer: ExecAnswer) {
  server = await ExecServer.start({ pods: [], answer: () => answer })
  const kubeconfig = await rig().file('kubeconfig', server.kubeconfig)
  const client = await openExecClient({
    kubeconfig,
    master: '',
    clock: systemClock,
    env: {},
    warn: () => undefined,
  })
  const { signal } = new AbortController()
  const asked = {
    namespace: 'ns',
    pod: 'p',
    container: 'c',
    command: ['x'],
    outputBytesMax: OUTPUT_BYTES_MAX,
    signal,
  }
  return await client.exec(asked).finally(() => client.close())
}

const [STDOUT, ERROR, OTHER] = [1, 3, 7]
const BINARY = 2

function message(channel: number, text: string): Buffer {
  return Buffer.concat([Buffer.from([channel]), Buffer.from(text)])
}

/** A frame that others continue. */
function begun(opcode: number, payload: Buffer): Buffer {
  const whole = frame(opcode, payload)
  whole[0] = opcode
  return whole
}

it('a command whose messages come in fragments, and on channels of others, is read', async () => {
  const raw = Buffer.concat([
    frame(BINARY, message(OTHER, 'x'.repeat(250))),
    begun(BINARY, message(STDOUT, 'hel')),
    frame(9, Buffer.from('ping')),
    begun(0, Buffer.from('l')),
    frame(0, Buffer.from('o')),
    frame(BINARY, message(ERROR, JSON.stringify({ status: 'Success' }))),
  ])
  expect(await run({ raw })).toEqual({ code: 0, stdout: Buffer.from('hello'), stderr: Buffer.alloc(0) })
})

const LONG = Buffer.alloc(OUTPUT_BYTES_MAX + 2)
const HALF = 'x'.repeat(200)

it.each<[string, ExecAnswer, string]>([
  ['another key', { accept: 'x' }, 'the server does not support WebSocket: it answers with another key'],
  ['a mask', { raw: Buffer.from([0x82, 0x81, 0, 0, 0, 0, 1]) }, 'the server masks its frames'],
  ['a long frame', { raw: frame(BINARY, LONG).subarray(0, 10) }, 'a frame of 302 bytes'],
  [
    'a long message',
    { raw: Buffer.concat([begun(BINARY, message(OTHER, HALF)), frame(0, Buffer.from(HALF))]) },
    'a message of more than 301 bytes',
  ],
  [
    'long output',
    { raw: Buffer.concat([0, 1].map(() => frame(BINARY, message(STDOUT, HALF)))) },
    'the command prints more than 300 bytes',
  ],
  [
    'an end without a status',
    { raw: frame(8, Buffer.alloc(0)) },
    'the server ended the command without its status',
  ],
  ['a status that is none', { raw: frame(BINARY, message(ERROR, 'no')) }, 'the command did not run: no'],
])('a command with %s fails', async (_, answer, expected) => {
  expect((await failureOf(run(answer))).message).toBe(expected)
})
