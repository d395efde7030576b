import { createSocket } from 'node:dgram'
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

/*
 * Requests from one place to Services, and a count of those that fail. Nothing is tried again: a client of its own that
 * retries would hide what the proxy has lost.
 */

/** tcp and udp: a new connection or port for each request; keep-alive: over open connections; lasting: over one, which may not break. */
export const KINDS = ['tcp', 'keep-alive', 'lasting', 'udp'] as const
export type Kind = (typeof KINDS)[number]

/** One client and its target, which answers GET /hostname, or the datagram "hostname", with a name. */
export interface Flow {
  readonly name: string
  readonly kind: Kind
  readonly host: string
  readonly port: number
  /** What the name of a server begins with: another one is a failure. */
  readonly server: string
  /** Of UDP: the name whose address DNS is asked for, instead of the datagram above. */
  readonly question?: string
}

export interface Failure {
  /** Milliseconds since 1970. */
  readonly at: number
  readonly error: string
}

export interface FlowCount {
  readonly sent: number
  readonly failed: number
  /** So many of the first ones have ended, well or not. */
  readonly ended: number
  /** The last ones. */
  readonly failures: readonly Failure[]
}

export type Counts = Readonly<Record<string, FlowCount>>

const PERIOD_MS = 100
/**
 * An answer may take three seconds, in ticks of the client itself: one that waits for a processor for that long reads the
 * answer that has come meanwhile only after its timers have run out.
 */
const TICK_MS = 100
const ANSWER_MAX_TICKS = 30
const WRITE_EVERY_MS = 250
const FAILURES_KEPT = 20
/**
 * Ports that the datagrams and new connections of a flow come from, in turn, below those that the kernel chooses from: none
 * comes again within the two minutes for which the kernel remembers it. A datagram from a port that it remembers goes to the
 * endpoint of the former one, which may have ended a moment ago, and so does a SYN where the former one had no answer.
 * Relays have 12091 and 12092.
 */
const FIRST_PORT = 13_000
const PORTS = 19_000

/** Sends until the file `stop` appears; writes the counts to `counts` meanwhile, each time as a whole. */
export async function runTraffic({
  flows,
  counts,
  stop,
}: {
  readonly flows: string
  readonly counts: string
  readonly stop: string
}): Promise<void> {
  const wanted: readonly Flow[] = JSON.parse(readFileSync(flows, 'utf8'))
  // So far apart that no two flows ever have the same port.
  const between = Math.floor(PORTS / wanted.length)
  const senders = wanted.map((flow, at) => new Sender(flow, at * between))
  // Not all at the same moment.
  const running = senders.map(async (sender, at) => {
    await sleep((PERIOD_MS * at) / senders.length)
    while (!existsSync(stop)) {
      sender.send()
      await sleep(PERIOD_MS)
    }
  })
  const write = () => {
    const now: Counts = Object.fromEntries(senders.map(sender => [sender.flow.name, sender.count()]))
    writeFileSync(`${counts}.new`, JSON.stringify(now))
    renameSync(`${counts}.new`, counts)
  }
  const timer = setInterval(write, WRITE_EVERY_MS)
  // After a pause it does not make up for those that it has missed.
  const clock = setInterval(() => {
    for (const sender of senders) sender.tick()
  }, TICK_MS)
  await Promise.all(running)
  await Promise.all(senders.map(sender => sender.settled()))
  clearInterval(timer)
  clearInterval(clock)
  write()
  writeFileSync(`${counts}.done`, '')
  // Open connections would hold the process.
  process.exit(0)
}

/** Sends the requests of one flow. Exported for its test. */
export class Sender {
  readonly flow: Flow
  readonly #agent: Agent | undefined
  readonly #failures: Failure[] = []
  /** By their numbers, from 1 on. */
  readonly #open = new Map<number, Promise<void>>()
  /** By the same numbers: what gives a request up, and the ticks until then. */
  readonly #limits = new Map<number, { left: number; readonly giveUp: () => void }>()
  #socket: Socket | undefined
  #sent = 0
  #failed = 0
  readonly #offset: number

  constructor(flow: Flow, offset: number) {
    this.flow = flow
    this.#offset = offset
    const { kind } = flow
    if (kind === 'keep-alive') this.#agent = new Agent({ keepAlive: true, maxSockets: 2 })
    if (kind === 'lasting') this.#agent = new Agent({ keepAlive: true, maxSockets: 1 })
  }

  send(): void {
    // It would wait in this process for one of the connections, and no proxy can make it wait less.
    if (this.#agent !== undefined && this.#open.size >= this.#agent.maxSockets) return
    const number = ++this.#sent
    const answer = this.flow.kind === 'udp' ? this.#ask(number) : this.#get(number)
    const one = answer
      .catch((error: Error) => this.#fail(error.message))
      .finally(() => {
        this.#open.delete(number)
        this.#limits.delete(number)
      })
    this.#open.set(number, one)
  }

  async settled(): Promise<void> {
    await Promise.all(this.#open.values())
  }

  /** A part of the time that answers may take is over. */
  tick(): void {
    for (const limit of this.#limits.values()) if (--limit.left === 0) limit.giveUp()
  }

  count(): FlowCount {
    const [oldest = this.#sent + 1] = this.#open.keys()
    return { sent: this.#sent, failed: this.#failed, ended: oldest - 1, failures: this.#failures }
  }

  #fail(error: string): void {
    this.#failed++
    this.#failures.push({ at: Date.now(), error })
    if (this.#failures.length > FAILURES_KEPT) this.#failures.shift()
  }

  #limit(number: number, reject: (error: Error) => void): void {
    const giveUp = () => reject(new Error(`no answer within ${(ANSWER_MAX_TICKS * TICK_MS) / 1000} s`))
    this.#limits.set(number, { left: ANSWER_MAX_TICKS, giveUp })
  }

  #get(number: number): Promise<void> {
    const { host, port, kind } = this.flow
    return new Promise((resolve, reject) => {
      const sent = request(
        {
          ...{ host, port, path: '/hostname' },
          ...(this.#agent === undefined
            ? { agent: false as const, localPort: this.#ownPort() }
            : { agent: this.#agent }),
        },
        response => {
          let text = ''
          response.setEncoding('utf8').on('data', chunk => {
            text += chunk
          })
          response.on('end', () => this.#expectServer(text, resolve, reject)).on('error', reject)
        },
      )
      // Until it has a socket, it does not report its end.
      this.#limit(number, error => {
        reject(error)
        sent.destroy(error)
      })
      if (kind === 'lasting') sent.on('socket', socket => this.#expectSame(socket))
      sent.on('error', reject)
      sent.end()
    })
  }

  #expectAnswer(octets: Buffer, resolve: () => void, reject: (error: Error) => void): void {
    if (this.flow.question === undefined) this.#expectServer(octets.toString(), resolve, reject)
    else if (hasAddress(octets)) resolve()
    else reject(new Error(`DNS answers without an address: ${octets.toString('hex').slice(0, 100)}`))
  }

  #expectServer(text: string, resolve: () => void, reject: (error: Error) => void): void {
    if (text.startsWith(this.flow.server)) resolve()
    else reject(new Error(`another server answers: ${text.slice(0, 100)}`))
  }

  /** A new connection is a failure where one should have lasted. */
  #expectSame(socket: Socket): void {
    if (this.#socket !== undefined && this.#socket !== socket) this.#fail('the connection broke')
    this.#socket = socket
  }

  #ownPort(): number {
    return FIRST_PORT + ((this.#offset + this.#sent) % PORTS)
  }

  #ask(number: number): Promise<void> {
    const { host, port, question } = this.flow
    const datagram = question === undefined ? 'hostname' : dnsQuery(question)
    const socket = createSocket(host.includes(':') ? 'udp6' : 'udp4')
    return new Promise<void>((resolve, reject) => {
      this.#limit(number, reject)
      socket.on('message', octets => this.#expectAnswer(octets, resolve, reject))
      socket.on('error', reject)
      // Connected: a refusal by ICMP becomes an error.
      socket.bind(this.#ownPort(), () => socket.connect(port, host, () => socket.send(datagram)))
    }).finally(() => socket.close())
  }
}

/** A question for the IPv4 addresses of a name (RFC 1035, section 4.1). */
export function dnsQuery(name: string): Buffer {
  const labels = name.split('.').map(label => Buffer.concat([Buffer.of(label.length), Buffer.from(label)]))
  const header = Buffer.from([0x6b, 0x70, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0])
  return Buffer.concat([header, ...labels, Buffer.of(0, 0, 1, 0, 1)])
}

/** Whether an answer has no error and at least one record. */
export function hasAddress(answer: Buffer): boolean {
  const isAnswer = answer.length > 12 && answer.readUInt8(2) >= 0x80
  return isAnswer && (answer.readUInt8(3) & 0xf) === 0 && answer.readUInt16BE(6) > 0
}
