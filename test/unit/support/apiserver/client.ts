import { request as requestHttp1 } from 'node:http'
import { type ClientHttp2Session, connect } from 'node:http2'
import { request as requestHttps } from 'node:https'
import type { ApiServer } from '../../../support/apiserver/http-server.ts'

export interface Answer {
  readonly code: number
  readonly headers: { readonly [name: string]: unknown }
  /** What came, whole or not. */
  readonly body: Buffer
  /** Undefined after a good end. */
  readonly error: Error | undefined
}

export interface AskOptions {
  /** Called at each piece, with all that came; true ends the request. */
  readonly enough?: (soFar: Buffer) => boolean
  readonly headers?: Readonly<Record<string, string>>
}

/** Over HTTP/2; the session is the caller's. */
export function session(server: ApiServer) {
  const made = connect(server.url, { ca: server.authority?.caPem })
  made.on('error', () => undefined)
  return made
}

export function askHttp2(on: ClientHttp2Session, path: string, options: AskOptions = {}): Promise<Answer> {
  const { enough = () => false } = options
  return new Promise(resolve => {
    const stream = on.request({ ':path': path, ...options.headers })
    let code = 0
    let error: Error | undefined
    let answered: Answer['headers'] = {}
    const chunks: Buffer[] = []
    stream.on('response', given => {
      code = Number(given[':status'])
      answered = given
    })
    stream.on('data', (chunk: Buffer) => {
      chunks.push(chunk)
      if (enough(Buffer.concat(chunks))) stream.close()
    })
    stream.on('error', thrown => {
      error = thrown
    })
    let whole = false
    stream.on('end', () => {
      whole = true
    })
    stream.on('close', () => {
      // A connection that is lost ends its streams as if they were whole, but for this code.
      if (!whole || stream.rstCode !== 0) error ??= new Error('lost')
      resolve({ code, headers: answered, body: Buffer.concat(chunks), error })
    })
  })
}

/** Over HTTP/1.1, one connection a request. */
export function askHttp1(server: ApiServer, path: string, options: AskOptions = {}): Promise<Answer> {
  const { enough = () => false } = options
  const url = new URL(path, server.url)
  const send = server.authority === undefined ? requestHttp1 : requestHttps
  return new Promise(resolve => {
    const chunks: Buffer[] = []
    const give = (code: number, answered: Answer['headers'], error: Error | undefined) =>
      resolve({ code, headers: answered, body: Buffer.concat(chunks), error })
    const sent = send(url, { agent: false, ca: server.authority?.caPem }, response => {
      let error: Error | undefined
      response.on('data', (chunk: Buffer) => {
        chunks.push(chunk)
        if (enough(Buffer.concat(chunks))) response.destroy()
      })
      response.on('error', thrown => {
        error = thrown
      })
      response.on('close', () => give(response.statusCode ?? 0, response.headers, error))
    })
    sent.on('error', error => give(0, {}, error))
    sent.end()
  })
}
