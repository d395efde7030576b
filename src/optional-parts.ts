import type { OptionalParts } from './daemon/optional-parts.ts'
import { createConntrackClient } from './kernel/conntrack/client.ts'

/** Loads the code of an optional part of a daemon when the configuration requests it. */
export const OPTIONAL_PARTS: OptionalParts = {
  async prover(options) {
    const { Prover } = await import('./proof/prover.ts')
    return new Prover(options)
  },
  async api() {
    const { ApiService } = await import('./api/api-service.ts')
    return options => new ApiService(options)
  },
  async page() {
    const { PageServer } = await import('./inspect/page/page-server.ts')
    return source =>
      new PageServer(async its => (await import('./inspect/page/page.ts')).openPage(its), source)
  },
  async relayClient(options) {
    const { openRelayClient } = await import('./relay/open.ts')
    return openRelayClient(options)
  },
  async unanswered(options) {
    const { UnansweredWatch } = await import('./inspect/live/unanswered-watch.ts')
    return new UnansweredWatch({ ...options, conntrack: createConntrackClient(options) })
  },
}
