import type { Crowd } from '../base/connection-gate.ts'
import type { Log } from '../base/log.ts'

/** Names the client whose connections a server closes. */
export function logCrowd(log: Log, server: string, { client, service, full, evicted, refused }: Crowd): void {
  const facts = { client, ...(service === undefined ? {} : { service }), full, evicted, refused }
  log.warn(facts, `${server}: too many connections; closed the longest idle ones of the largest client`)
}
