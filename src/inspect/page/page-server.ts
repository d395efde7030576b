import { readFile } from 'node:fs/promises'
import type { ApiTls } from '../../api/grpc/http-server.ts'
import { type Cancel, Pacer } from '../../base/clock.ts'
import { errorOf } from '../../base/errors.ts'
import { formatIpPort, isLoopback } from '../../base/ip.ts'
import { NONE_OVER_SHARE } from '../../base/shares.ts'
import type { UiConfig } from '../../config/config.ts'
import type { PageSource, UiServer, UiServerOptions, WebPage } from '../../daemon/optional-parts.ts'
import {
  type Handler,
  type HttpAnswer,
  type HttpRequest,
  hasToken,
  isOwnHost,
  misdirected,
  PLAIN,
  readOnly,
} from '../../http/connections.ts'
import { HttpServer, type HttpServerOptions } from '../../http/server.ts'
import { PAGE_PATH } from '../../telemetry/admin-server.ts'
import { slowedRefusals } from './refusal-pace.ts'

/** The web page as it is served: what is below /ui/. */
export interface Page {
  readonly handle: Handler
  readonly close: () => Promise<void>
}

export type OpenPage = (source: PageSource) => Promise<Page>

/** The web page at the admin socket and at an address of its own. Nothing of it is loaded before the first request. */
export class PageServer implements WebPage {
  readonly #open: OpenPage
  readonly #source: PageSource
  readonly #slowed: (handle: Handler) => Handler
  #page: Promise<Page> | undefined

  constructor(open: OpenPage, source: PageSource) {
    this.#open = open
    this.#source = source
    this.#slowed = slowedRefusals(source.clock)
    this.atSocket = this.#slowed(request => this.#answer(request))
  }

  /** Answers at the admin socket, to whose owner the kernel restricts it. */
  readonly atSocket: Handler

  /** Answers at an address; with a file of a token, only those who give that. */
  at(tokenFile: string): Handler {
    const admitted = readOnly(async request => {
      if (tokenFile !== '') {
        const token = await readFile(tokenFile, 'utf8').then(
          text => text.trim(),
          () => '',
        )
        if (token === '') return noToken(tokenFile)
        if (!hasToken(request.authorization, token)) return NOT_ADMITTED
      }
      return request.path === '/' ? TO_PAGE : await this.#answer(request)
    })
    return this.#slowed(admitted)
  }

  listen(config: UiConfig, options: UiServerOptions): UiServer {
    return openUiServer(config, { ...options, page: this })
  }

  async close(): Promise<void> {
    await (await this.#page)?.close()
  }

  async #answer(request: HttpRequest): Promise<HttpAnswer> {
    const { host } = request
    if (!isOwnHost(host, [this.#source.config().nodeName])) return misdirected(host)
    this.#page ??= this.#open(this.#source)
    const page = await this.#page.catch((error: unknown) => {
      // The next request tries again.
      this.#page = undefined
      throw error
    })
    return await page.handle(request)
  }
}

/** Time until certificates that cannot be used are read again. */
const RETRY_MS = 5_000

/** Listens at --ui-address; with TLS as soon as its files are valid. Until then the log has the reason. */
export function openUiServer(
  { at, tokenFile, tls }: UiConfig,
  { clock, log, page, report }: UiServerOptions & { readonly page: Pick<PageServer, 'at'> },
): UiServer {
  let server: HttpServer | undefined
  const listen = (enter?: HttpServerOptions['enter']): void => {
    const handle = page.at(tokenFile)
    // A browser opens at most six.
    const [connectionsMax, hardFail] = [48, false]
    server = new HttpServer({ at, clock, connectionsMax, handle, enter, hardFail, report })
  }
  if (tls === undefined) {
    if (!isLoopback(at.ip)) log.warn({ address: formatIpPort(at.ip, at.port) }, IN_PLAIN)
    listen()
  }
  const door = tls && openDoor({ ...tls, flags: '--ui-tls' }, { clock, log, opened: listen })
  return {
    get overShare() {
      return server?.overShare ?? NONE_OVER_SHARE
    },
    close() {
      door?.()
      void server?.close()
    },
  }
}

const IN_PLAIN = 'the token of the web page crosses the network in plain text; --ui-tls-cert encrypts it'

interface DoorOptions extends Pick<UiServerOptions, 'clock' | 'log'> {
  readonly opened: (enter: HttpServerOptions['enter']) => void
}

/** Reads the certificates until they can be used once, and follows their files from then on. */
function openDoor(files: ApiTls, { clock, log, opened }: DoorOptions): Cancel {
  let complaint = ''
  let unfollow: Cancel | undefined
  const pacer = new Pacer({
    clock,
    async run() {
      const { readTls, followTls, TlsDoor } = await import('../../api/grpc/http-server.ts')
      try {
        const pems = await readTls(files)
        if (pacer.isStopped) return
        const door = new TlsDoor(pems)
        const failed = (err: Error) =>
          log.error({ err }, 'ui: cannot renew the certificates; the last ones stay in use')
        unfollow = followTls(files, { clock, pems, changed: now => door.renew(now), failed })
        opened(door.enter.bind(door))
        return
      } catch (thrown) {
        const err = errorOf(thrown)
        if (err.message !== complaint) log.error({ err }, UNUSABLE)
        complaint = err.message
        return RETRY_MS
      }
    },
  })
  pacer.wake()
  return () => {
    void pacer.stop()
    unfollow?.()
  }
}

const UNUSABLE = `ui: cannot use the certificates; the web page is not served at --ui-address; retrying every ${RETRY_MS / 1000} s`

const TO_PAGE: HttpAnswer = {
  status: 302,
  headers: { ...PLAIN, Location: PAGE_PATH },
  body: `${PAGE_PATH}\n`,
}
const NOT_ADMITTED: HttpAnswer = {
  status: 401,
  headers: { ...PLAIN, 'WWW-Authenticate': 'Basic realm="kprobe", charset="UTF-8"' },
  body: '401 unauthorized: give the token as the password, or as a bearer token\n',
}

function noToken(path: string): HttpAnswer {
  return { status: 503, headers: PLAIN, body: `503 no token can be read from ${JSON.stringify(path)}\n` }
}
