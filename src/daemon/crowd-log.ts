import type { Crowd } from '../base/connection-gate.ts'
import type { Log } from '../base/log.ts'

/** Logs which client lost connections to a server, and whether the server closed or refused them. */
export function logCrowd(log: Log, server: string, { client, service, full, evicted, refused }: Crowd): void {
  const facts = { client, ...(service === undefined ? {} : { service }), full, evicted, refused }
  const closed = evicted > 0 ? ['closed the longest idle ones of the largest client'] : []
  const busy = refused > 0 ? ['refused new ones because the others are busy'] : []
  log.warn(facts, `${server}: too many connections; ${[...closed, ...busy].join('; ')}`)
}
