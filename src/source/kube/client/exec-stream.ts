import { createHash, randomBytes } from 'node:crypto'
import { type IncomingMessage, request } from 'node:http'
import type { Socket } from 'node:net'
import { isJson, type Json } from '../../../model/fields.ts'
import { ApiError } from '../api-client.ts'
import { type Credentials, openCredentials } from './credentials.ts'
import { dial } from './dial.ts'
import { type ClientOptions, wayTo } from './http-client.ts'
import { SERVICE_ACCOUNT_FOLDER } from './kubeconfig.ts'

/* Commands in containers, over WebSocket (RFC 6455) with the protocol v5.channel.k8s.io: the first byte of a message is its
   channel. */

interface ExecEnded {
  readonly code: number
  readonly stdout: Buffer
  readonly stderr: Buffer
}

interface ExecRequest {
  readonly namespace: string
  readonly pod: string
  readonly container: string
  readonly command: readonly string[]
  /** Maximum bytes of output; more is an error. */
  readonly outputBytesMax: number
  readonly signal: AbortSignal
}

/** Runs commands in containers. */
export interface ExecClient {
  /** Rejects with ApiError where the command did not run to its end. */
  exec(request: ExecRequest): Promise<ExecEnded>
  close(): void
}

type ExecOptions = Pick<ClientOptions, 'kubeconfig' | 'master' | 'context' | 'clock' | 'env' | 'warn'>

/** Reads the configuration. Each command has a connection of its own. Throws ApiError 'credentials'. */
export async function openExecClient(options: ExecOptions): Promise<ExecClient> {
  const credentials = await openCredentials({
    ...options,
    wallMs: Date.now,
    serviceAccountFolder: SERVICE_ACCOUNT_FOLDER,
  })
  return {
    exec: asked => exec(credentials, asked, options),
    close: () => credentials.close(),
  }
}

const PROTOCOLS = 'v5.channel.k8s.io, v4.channel.k8s.io'
/** RFC 6455, 1.3. */
const ACCEPT_SUFFIX = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'

async function exec(
  credentials: Credentials,
  asked: ExecRequest,
  { clock, env }: Pick<ExecOptions, 'clock' | 'env'>,
): Promise<ExecEnded> {
  const { headers } = await credentials.pass()
  const tls = await credentials.tls()
  const { address, proxy } = wayTo(credentials.access, env)
  const { signal } = asked
  const dialed = await dial({ address, tls, proxy, clock, isUpgraded: true, signal })
  const key = randomBytes(16).toString('base64')
  const upgraded = await upgrade(dialed.socket, {
    path: `${address.basePath}${pathOf(asked)}`,
    headers: {
      ...headers,
      host: address.authority,
      connection: 'Upgrade',
      upgrade: 'websocket',
      'sec-websocket-version': '13',
      'sec-websocket-key': key,
      'sec-websocket-protocol': PROTOCOLS,
      'user-agent': 'kprobe',
    },
    accept: createHash('sha1').update(`${key}${ACCEPT_SUFFIX}`).digest('base64'),
    signal,
  })
  try {
    return await converse(upgraded, asked)
  } finally {
    upgraded.socket.destroy()
  }
}

function pathOf({ namespace, pod, container, command }: ExecRequest): string {
  const query = new URLSearchParams({ container, stdout: 'true', stderr: 'true' })
  for (const word of command) query.append('command', word)
  const place = `${encodeURIComponent(namespace)}/pods/${encodeURIComponent(pod)}`
  return `/api/v1/namespaces/${place}/exec?${query}`
}

interface Upgrade {
  readonly path: string
  readonly headers: Record<string, string | string[]>
  /** The value by which the server shows that it has read the key. */
  readonly accept: string
  readonly signal: AbortSignal
}

interface Upgraded {
  readonly socket: Socket
  /** Bytes that came behind the answer. */
  readonly head: Buffer
}

/** Maximum bytes of an answer that is no upgrade. */
const REFUSAL_BYTES_MAX = 4_096

function upgrade(socket: Socket, { path, headers, accept, signal }: Upgrade): Promise<Upgraded> {
  const asked = request({ createConnection: () => socket, path, headers })
  return new Promise((resolve, reject) => {
    const fail = (kind: 'lost' | 'protocol' | 'aborted', text: string, cause?: unknown) => {
      socket.destroy()
      reject(new ApiError(kind, text, { cause }))
    }
    const abort = () => fail('aborted', String(signal.reason))
    signal.addEventListener('abort', abort, { once: true })
    if (signal.aborted) abort()
    asked.once('error', error => fail('lost', error.message, error))
    asked.once('response', response => void refusalOf(response).then(text => fail('protocol', text)))
    asked.once('upgrade', (response, _, head) => {
      if (response.headers['sec-websocket-accept'] === accept) resolve({ socket, head })
      else fail('protocol', 'the server does not support WebSocket: it answers with another key')
    })
    asked.end()
  })
}

/** `status 403: pods "kprobe-x" is forbidden: ...`. */
async function refusalOf(response: IncomingMessage): Promise<string> {
  let text = ''
  try {
    for await (const chunk of response) {
      text += String(chunk)
      if (text.length > REFUSAL_BYTES_MAX) break
    }
  } catch {
    // The status says enough.
  }
  return `status ${response.statusCode}: ${String(jsonOf(text).message ?? text).slice(0, 300)}`
}

const CHANNEL = { stdout: 1, stderr: 2, error: 3 } as const
const OPCODE = { continuation: 0, text: 1, binary: 2, close: 8, ping: 9, pong: 10 } as const

async function converse({ socket, head }: Upgraded, asked: ExecRequest): Promise<ExecEnded> {
  const { signal, outputBytesMax } = asked
  const [stdout, stderr]: [Buffer[], Buffer[]] = [[], []]
  const ended = new Frames(outputBytesMax)
  let bytes = 0
  const status = await new Promise<Buffer>((resolve, reject) => {
    const fail = (kind: 'lost' | 'protocol' | 'aborted', text: string) => reject(new ApiError(kind, text))
    const take = (chunk: Buffer) => {
      try {
        for (const { opcode, payload } of ended.push(chunk)) {
          if (opcode === OPCODE.ping) socket.write(frame(OPCODE.pong, payload))
          if (opcode === OPCODE.close) fail('lost', 'the server ended the command without its status')
          if (opcode !== OPCODE.binary && opcode !== OPCODE.text) continue
          const [channel, rest] = [payload[0], payload.subarray(1)]
          if (channel === CHANNEL.error) return resolve(rest)
          if (channel !== CHANNEL.stdout && channel !== CHANNEL.stderr) continue
          bytes += rest.length
          if (bytes > outputBytesMax)
            return fail('protocol', `the command prints more than ${outputBytesMax} bytes`)
          if (channel === CHANNEL.stdout) stdout.push(rest)
          else stderr.push(rest)
        }
      } catch (error) {
        reject(error)
      }
    }
    signal.addEventListener('abort', () => fail('aborted', String(signal.reason)), { once: true })
    if (signal.aborted) fail('aborted', String(signal.reason))
    socket.on('data', take)
    socket.on('error', error => fail('lost', error.message))
    socket.on('close', () => fail('lost', 'the connection ended before the command did'))
    take(head)
  })
  return {
    code: exitCodeOf(status.toString('utf8')),
    stdout: Buffer.concat(stdout),
    stderr: Buffer.concat(stderr),
  }
}

/** Reads the Status of a command. Throws ApiError if the command did not run. */
function exitCodeOf(text: string): number {
  const { status, message, details } = jsonOf(text)
  if (status === 'Success') return 0
  const causes = isJson(details) && Array.isArray(details.causes) ? details.causes.filter(isJson) : []
  const code = Number(causes.find(({ reason }) => reason === 'ExitCode')?.message)
  if (Number.isInteger(code)) return code
  throw new ApiError('protocol', `the command did not run: ${String(message ?? text).slice(0, 300)}`)
}

function jsonOf(text: string): Json {
  try {
    const value: unknown = JSON.parse(text)
    return isJson(value) ? value : {}
  } catch {
    return {}
  }
}

interface Frame {
  readonly opcode: number
  readonly payload: Buffer
}

/** Splits a stream into messages. */
class Frames {
  readonly #bytesMax: number
  #rest: Buffer = Buffer.alloc(0)
  #message: Buffer[] = []
  #messageBytes = 0
  #opcode = 0

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax + 1
  }

  /** Gives the messages that are whole now. Throws ApiError 'protocol'. */
  *push(chunk: Buffer): Generator<Frame> {
    this.#rest = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk])
    for (;;) {
      const [first, second] = this.#rest
      if (first === undefined || second === undefined) return
      if ((second & 0x80) !== 0) throw new ApiError('protocol', 'the server masks its frames')
      const short = second & 0x7f
      const head = short === 126 ? 4 : short === 127 ? 10 : 2
      if (this.#rest.length < head) return
      const length =
        short === 126
          ? this.#rest.readUInt16BE(2)
          : short === 127
            ? Number(this.#rest.readBigUInt64BE(2))
            : short
      if (length > this.#bytesMax) throw new ApiError('protocol', `a frame of ${length} bytes`)
      if (this.#rest.length < head + length) return
      const payload = this.#rest.subarray(head, head + length)
      this.#rest = this.#rest.subarray(head + length)
      const opcode = first & 0x0f
      if (opcode >= OPCODE.close) {
        yield { opcode, payload }
        continue
      }
      if (opcode !== OPCODE.continuation) this.#opcode = opcode
      this.#message.push(payload)
      this.#messageBytes += length
      if (this.#messageBytes > this.#bytesMax)
        throw new ApiError('protocol', `a message of more than ${this.#bytesMax} bytes`)
      if ((first & 0x80) === 0) continue
      const whole = Buffer.concat(this.#message)
      this.#message = []
      this.#messageBytes = 0
      yield { opcode: this.#opcode, payload: whole }
    }
  }
}

/** Encodes a short control frame of a client, which is masked. */
function frame(opcode: number, payload: Buffer): Buffer {
  const mask = randomBytes(4)
  const masked = payload.subarray(0, 125).map((octet, at) => octet ^ (mask[at % 4] ?? 0))
  return Buffer.concat([Buffer.from([0x80 | opcode, 0x80 | masked.length]), mask, masked])
}
