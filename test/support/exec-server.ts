import { createHash } from 'node:crypto'
import { createServer, type IncomingMessage, type Server } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { kubeconfigText } from './kubeconfig.ts'

/** What a container answers to a command. */
export interface ExecAnswer {
  readonly stdout?: string | Buffer
  readonly stderr?: string
  readonly code?: number
  /** The kubelet's words where the command does not run. */
  readonly failure?: string
  /** Ends the connection without a status. */
  readonly isCut?: boolean
  /** Runs the command, which never prints. */
  readonly isSilent?: boolean
  /** Never answers the upgrade. */
  readonly isHung?: boolean
  /** Refuses the upgrade with this status. */
  readonly status?: number
  /** All that comes behind it. */
  readonly raw?: Buffer
}

export interface ExecAsked {
  readonly pod: string
  readonly container: string
  readonly command: readonly string[]
}

interface ExecServerOptions {
  readonly pods: readonly object[]
  /** The label of the pods. */
  readonly label?: string
  readonly answer: (asked: ExecAsked) => ExecAnswer
}

/** Time that each command takes. */
const RUN_MS = 5
/** As long as what a kubelet sends at once. */
const FRAME_BYTES = 32 * 1024

/** An API server with pods, in which commands run: HTTP/1.1, and WebSocket with v5.channel.k8s.io. */
export class ExecServer {
  /** Commands that run at the moment, and the most that there were. */
  running = 0
  most = 0
  readonly asked: ExecAsked[] = []
  readonly tokens = new Set<string | undefined>()
  /** The headers of each request that impersonate. */
  readonly identities = new Set<string>()
  readonly #server: Server
  readonly #sockets = new Set<Socket>()

  static async start(options: ExecServerOptions): Promise<ExecServer> {
    const server = new ExecServer(options)
    await new Promise<void>(listening => server.#server.listen(0, '127.0.0.1', listening))
    return server
  }

  private constructor({ pods, answer, label = 'k8s-app=kprobe' }: ExecServerOptions) {
    this.#server = createServer((request, response) => {
      this.#note(request)
      const { searchParams } = new URL(request.url ?? '', 'http://server')
      const [limit, from] = [Number(searchParams.get('limit')), Number(searchParams.get('continue') ?? 0)]
      const items = pods.slice(from, from + limit)
      const rest = from + limit < pods.length ? String(from + limit) : ''
      const isNone = searchParams.get('labelSelector') !== label
      response.setHeader('content-type', 'application/json')
      response.end(
        JSON.stringify({
          kind: 'PodList',
          metadata: { continue: isNone ? '' : rest },
          items: isNone ? [] : items,
        }),
      )
    })
    this.#server.on('connection', socket => {
      this.#sockets.add(socket)
      socket.on('error', () => undefined)
      socket.on('close', () => this.#sockets.delete(socket))
    })
    this.#server.on('upgrade', (request: IncomingMessage, socket: Socket) =>
      this.#exec(request, socket, answer),
    )
  }

  get url(): string {
    const address = this.#server.address()
    return `http://127.0.0.1:${isInfo(address) ? address.port : 0}`
  }

  get kubeconfig(): string {
    return kubeconfigText({ server: this.url, token: 'secret-token' })
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy()
    await new Promise(done => this.#server.close(done))
  }

  #note({ headers, rawHeaders }: IncomingMessage): void {
    this.tokens.add(headers.authorization)
    const pairs = rawHeaders.flatMap((name, at) =>
      /^impersonate-/i.test(name) ? [`${name.toLowerCase()}=${rawHeaders[at + 1]}`] : [],
    )
    this.identities.add(pairs.join(' '))
  }

  #exec(request: IncomingMessage, socket: Socket, answer: ExecServerOptions['answer']): void {
    const { url = '', headers } = request
    const { pathname, searchParams } = new URL(url, 'http://server')
    const [, pod = ''] = /\/pods\/([^/]+)\/exec$/.exec(pathname) ?? []
    const asked = {
      pod,
      container: searchParams.get('container') ?? '',
      command: searchParams.getAll('command'),
    }
    this.asked.push(asked)
    this.#note(request)
    const { stdout = '', stderr = '', code = 0, failure, isCut, isSilent, isHung, ...its } = answer(asked)
    const { status, raw } = its
    if (isHung === true) return
    if (status !== undefined) {
      const body = JSON.stringify({ kind: 'Status', message: `${pod} is forbidden` })
      socket.end(`HTTP/1.1 ${status} No\r\nContent-Length: ${body.length}\r\n\r\n${body}`)
      return
    }
    socket.write(upgradeText(headers))
    if (raw !== undefined) {
      socket.write(raw)
      return
    }
    this.running++
    this.most = Math.max(this.most, this.running)
    let isOver = false
    const over = () => {
      if (!isOver) this.running--
      isOver = true
    }
    socket.on('close', over)
    // Sockets of an HTTP server stay open for answers when their client has ended.
    socket.on('end', () => socket.end())
    socket.resume()
    if (isSilent === true) return
    // A turn later, so that commands of several nodes run at once.
    setTimeout(() => {
      socket.write(frame(9, Buffer.from('ping')))
      for (const [channel, data] of [
        [1, Buffer.from(stdout)],
        [2, Buffer.from(stderr)],
      ] as const)
        for (let at = 0; at < data.length; at += FRAME_BYTES)
          socket.write(frame(2, Buffer.concat([Buffer.from([channel]), data.subarray(at, at + FRAME_BYTES)])))
      over()
      if (isCut === true) return socket.destroy()
      socket.write(
        frame(2, Buffer.concat([Buffer.from([3]), Buffer.from(JSON.stringify(statusOf(code, failure)))])),
      )
      socket.write(frame(8, Buffer.from([3, 232])))
    }, RUN_MS)
  }
}

function upgradeText(headers: IncomingMessage['headers']): string {
  const right = createHash('sha1').update(
    `${headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`,
  )
  const protocol = String(headers['sec-websocket-protocol']).split(',')[0]
  const lines = [
    'HTTP/1.1 101 Switching Protocols',
    'Upgrade: websocket',
    'Connection: Upgrade',
    `Sec-WebSocket-Accept: ${right.digest('base64')}`,
    `Sec-WebSocket-Protocol: ${protocol}`,
  ]
  return `${lines.join('\r\n')}\r\n\r\n`
}

function isInfo(address: unknown): address is AddressInfo {
  return typeof address === 'object' && address !== null && 'port' in address
}

function statusOf(code: number, failure: string | undefined) {
  if (failure !== undefined)
    return { status: 'Failure', reason: 'InternalError', message: failure, code: 500 }
  if (code === 0) return { metadata: {}, status: 'Success' }
  const causes = [{ reason: 'ExitCode', message: String(code) }]
  return { status: 'Failure', message: `exit ${code}`, reason: 'NonZeroExitCode', details: { causes } }
}

/** A frame of a server: whole, and not masked. */
export function frame(opcode: number, payload: Buffer): Buffer {
  const { length } = payload
  if (length < 126) return Buffer.concat([Buffer.from([0x80 | opcode, length]), payload])
  const head = Buffer.from([0x80 | opcode, 126, 0, 0])
  if (length < 65_536) {
    head.writeUInt16BE(length, 2)
    return Buffer.concat([head, payload])
  }
  const long = Buffer.concat([Buffer.from([0x80 | opcode, 127]), Buffer.alloc(8)])
  long.writeBigUInt64BE(BigInt(length), 2)
  return Buffer.concat([long, payload])
}
