import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process'
import { once } from 'node:events'
import { assert } from '../../../src/base/errors.ts'
import { within } from '../patience.ts'
import { buildProgram } from './build.ts'

const HEADER = 5

/** A running packet-pipe: see packet-pipe.c for what it does and how it is spoken with. */
export class PacketPipe {
  readonly pid: number
  readonly #child: ChildProcessWithoutNullStreams
  readonly #receive: (packet: Buffer) => void
  #unread: Buffer = Buffer.alloc(0)
  #waiting: Array<() => void> = []
  #exit: Error | undefined
  #words = ''

  private constructor(child: ChildProcessWithoutNullStreams, receive: (packet: Buffer) => void) {
    assert(child.pid !== undefined, 'packet-pipe did not start')
    this.pid = child.pid
    this.#child = child
    this.#receive = receive
    child.stdout.on('data', chunk => this.#read(chunk))
    child.stderr.on('data', chunk => {
      this.#words += chunk
    })
    // A broken pipe means that the program ended: the reason comes with its exit.
    child.stdin.on('error', error => {
      this.#words += `${error.message} `
    })
    child.on('close', code => {
      this.#exit = new Error(`packet-pipe ended with ${code}: ${this.#words.trim()}`)
      for (const wake of this.#waiting.splice(0)) wake()
    })
  }

  /** `receive` gets every IP packet that arrives. Resolves once the program is in its namespace. */
  static async start(kind: 'namespace' | 'node', receive: (packet: Buffer) => void): Promise<PacketPipe> {
    const child = spawn(buildProgram('packet-pipe'), [kind], { stdio: ['pipe', 'pipe', 'pipe'] })
    const pipe = new PacketPipe(child, receive)
    await pipe.#answer()
    return pipe
  }

  /** Starts to send to and to listen on an interface; `peer` is the link address of its other end. */
  open(name: string, peer: string): void {
    this.#write('I', Buffer.from(`${name} ${peer.replaceAll(':', '')}`))
  }

  send(packets: readonly Buffer[]): void {
    this.#child.stdin.write(Buffer.concat(packets.flatMap(packet => [header('P', packet.length), packet])))
  }

  forgetConnections(): void {
    this.#write('C', Buffer.alloc(0))
  }

  /** Resolves once everything sent before is done, and everything received before is handed over. */
  async sync(): Promise<void> {
    this.#write('S', Buffer.alloc(0))
    await this.#answer()
  }

  async close(): Promise<void> {
    if (this.#exit !== undefined) return
    const ended = once(this.#child, 'close')
    this.#child.stdin.end()
    await within(ended, 'packet-pipe ends')
  }

  #write(type: string, body: Buffer): void {
    this.#child.stdin.write(Buffer.concat([header(type, body.length), body]))
  }

  async #answer(): Promise<void> {
    const answered = new Promise<void>(resolve => this.#waiting.push(resolve))
    if (this.#exit === undefined) await within(answered, 'packet-pipe answers')
    if (this.#exit !== undefined) throw this.#exit
  }

  #read(chunk: Buffer): void {
    const bytes = this.#unread.length === 0 ? chunk : Buffer.concat([this.#unread, chunk])
    let at = 0
    while (bytes.length - at >= HEADER) {
      const end = at + HEADER + bytes.readUInt32LE(at)
      if (bytes.length < end) break
      if (bytes[at + 4] === 0x53) this.#waiting.shift()?.()
      else this.#receive(bytes.subarray(at + HEADER, end))
      at = end
    }
    this.#unread = bytes.subarray(at)
  }
}

function header(type: string, length: number): Buffer {
  const bytes = Buffer.alloc(HEADER)
  bytes.writeUInt32LE(length, 0)
  bytes.write(type, 4, 'latin1')
  return bytes
}
