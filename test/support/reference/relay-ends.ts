import { createConnection, type Socket } from 'node:net'

/** Where a relay listens or dials: a port of the loopback address, or a unix socket, which is in no network namespace. */
export type RelayEnd = { readonly port: number } | { readonly path: string }

export function dial(end: RelayEnd): Socket {
  return 'port' in end ? createConnection({ port: end.port, host: '127.0.0.1' }) : createConnection(end.path)
}

/** In the words of relay-half.mjs. */
export function endWord(end: RelayEnd): string {
  return 'port' in end ? `port:${end.port}` : `path:${end.path}`
}
