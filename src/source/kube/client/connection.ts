import type { Clock } from '../../../base/clock.ts'
import type { Answer } from './answer.ts'
import type { Call } from './call.ts'

/** A request as it goes out, credentials included: never to be printed. */
export interface Outgoing {
  readonly method: string
  /** The path, with the server's base path. */
  readonly path: string
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, string | readonly string[]>>
  readonly body: string | undefined
  /** Longest silence between two pieces of the response's body, milliseconds; a watch has no such limit. */
  readonly idleMs: number
  readonly longLived: boolean
  /** The limit of a watch where the connection itself notices no dead peer (HTTP/1.1), milliseconds. */
  readonly watchIdleMs: number
}

/** Whether a response may be silent for as long as its connection lives: a watch that is refused has an end. */
export function isWatch({ longLived }: Outgoing, status: number): boolean {
  return longLived && status === 200
}

/** One connection to the server, over which one or more requests go at a time. */
export interface HttpConnection {
  readonly protocol: 'h2' | 'http/1.1'
  /** Requests that may begin now; 0 when it takes no more. */
  readonly room: number
  /** It will have no room again. */
  readonly retired: boolean
  /** Its socket is gone or going. */
  readonly closed: boolean
  /** Which client certificate it was made with. */
  readonly identity: string
  /** Needs room. The answer comes or the call fails. */
  send(outgoing: Outgoing, call: Call): Promise<Answer>
  /** Takes no new requests and closes after the last one. */
  retire(): void
  /** A request over it got no answer in time: finds out whether the peer is still there. */
  probe(): void
  /** Closes at once; requests under way have failed before, or fail as lost. Resolves when the socket is closed. */
  close(): Promise<void>
}

/** What a connection reports to its pool, and what it needs. */
export interface ConnectionContext {
  readonly clock: Clock
  readonly identity: string
  /** Its room has changed, or it has closed. */
  readonly changed: (connection: HttpConnection) => void
}
