import type { IncomingMessage } from 'node:http'
import { Writable } from 'node:stream'
import { failureText } from '../../base/errors.ts'
import { listAt, textAt } from '../../base/plain-data.ts'
import { bytesText } from '../../base/text.ts'
import { isJson, type Json } from '../../model/fields.ts'
import { ApiError } from '../../source/kube/api-client.ts'

/** The parts of a WebSocket of `ws` that are used here. */
export interface ExecSocket {
  emit(name: string, ...values: readonly unknown[]): boolean
  on(name: 'unexpected-response', listener: (request: unknown, response: IncomingMessage) => void): void
  on(name: 'error', listener: (error: Error) => void): void
  on(name: 'close', listener: (code: number) => void): void
  terminate(): void
}

/** Fails where the connection does, or where the package throws, which would end this process: it runs in events. */
export function guarded(
  socket: ExecSocket,
  fail: (kind: ApiError['kind'], text: string) => void,
): ExecSocket {
  const emit = socket.emit.bind(socket)
  socket.emit = (name, ...values) => {
    try {
      return emit(name, ...values)
    } catch (error) {
      fail('protocol', `the server breaks the protocol: ${failureText(error)}`)
      return true
    }
  }
  socket.on('unexpected-response', (_, response) => {
    // Maximum bytes of an answer that is no upgrade.
    void textOf(response, 4_096)
      .catch(() => '')
      .then(text =>
        fail(
          'protocol',
          `status ${response.statusCode}: ${String(jsonOf(text).message ?? text).slice(0, 300)}`,
        ),
      )
  })
  socket.on('error', error => fail('lost', error.message))
  socket.on('close', code =>
    fail(
      'lost',
      code === NO_CLOSE_FRAME
        ? 'the connection ended before the command did'
        : 'the server ended the command without its status',
    ),
  )
  return socket
}

/** RFC 6455, 7.1.5. */
const NO_CLOSE_FRAME = 1_006

export class Output {
  readonly stdout: ReturnType<Output['collect']>
  readonly stderr: ReturnType<Output['collect']>
  #bytes = 0
  readonly #bytesMax: number
  readonly #tooMuch: (text: string) => void

  constructor(bytesMax: number, tooMuch: (text: string) => void) {
    this.#bytesMax = bytesMax
    this.#tooMuch = tooMuch
    this.stdout = this.collect()
    this.stderr = this.collect()
  }

  collect() {
    const parts: Buffer[] = []
    const write = (part: Buffer, _: unknown, done: () => void) => {
      this.#bytes += part.length
      if (this.#bytes > this.#bytesMax) this.#tooMuch(`the command prints more than ${this.#bytesMax} bytes`)
      else parts.push(part)
      done()
    }
    return {
      stream: new Writable({ write }),
      get bytes() {
        return Buffer.concat(parts)
      },
    }
  }
}

/** The exit code in the Status of a command; undefined if it did not run. */
export function exitCodeOf(status: unknown): number | undefined {
  if (textAt(status, 'status') === 'Success') return 0
  const causes = isJson(status) ? listAt(status.details, 'causes') : []
  const code = Number(
    textAt(
      causes.find(cause => textAt(cause, 'reason') === 'ExitCode'),
      'message',
    ) || 'none',
  )
  return Number.isInteger(code) ? code : undefined
}

/** Reads an answer of at most so many bytes. Throws ApiError 'protocol' for more. */
export async function textOf(response: IncomingMessage, bytesMax: number): Promise<string> {
  const parts: Buffer[] = []
  let bytes = 0
  for await (const part of response) {
    parts.push(part)
    bytes += part.length
    if (bytes > bytesMax) throw new ApiError('protocol', `the answer has more than ${bytesText(bytesMax)}`)
  }
  return Buffer.concat(parts).toString('utf8')
}

/** Gives an empty object for what is no JSON of an object. */
export function jsonOf(text: string): Json {
  try {
    const value: unknown = JSON.parse(text)
    return isJson(value) ? value : {}
  } catch {
    return {}
  }
}
