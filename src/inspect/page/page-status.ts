import type { PageSource } from '../../daemon/optional-parts.ts'
import { forwardingFindings } from '../check/doctor.ts'
import type { TopState } from '../live/top-sampler.ts'
import { collectStatus } from '../status/collect.ts'
import type { StatusDocument } from '../status/status-document.ts'
import { daemonFacts } from '../status/status-facts.ts'

/**
 * Judges the node as `kprobe status` does, by what this daemon knows and what its sampler has seen last. The rules of 10,000
 * Services are not read for it: that would delay the daemon, which looks after them itself.
 */
export async function pageStatus(
  { status, health, version, wallMs }: PageSource,
  last: TopState | undefined,
): Promise<StatusDocument> {
  return await collectStatus({
    wallMs,
    version,
    daemon: async () => daemonFacts({ config: { version }, status: status(), health: await health() }),
    rules: async () => ({ findings: await forwardingFindings(), modes: [] }),
    conntrack: async () => last?.table && { ...last.table, largest: last.largest },
    // The page has a curve of them instead.
    refused: async () => undefined,
    unanswered: async () => last?.unanswered,
  })
}
