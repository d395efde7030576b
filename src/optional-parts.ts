import type { OptionalParts } from './daemon/optional-parts.ts'

/** Where the code of each optional part of a daemon is. Nothing is loaded before it is asked for. */
export const OPTIONAL_PARTS: OptionalParts = {
  async prover(options) {
    const { Prover } = await import('./daemon/prover.ts')
    return new Prover(options)
  },
  async api() {
    const { ApiService } = await import('./daemon/api-service.ts')
    return options => new ApiService(options)
  },
  async page() {
    const { PageServer } = await import('./daemon/page.ts')
    return source => new PageServer(async its => (await import('./cli/page.ts')).openPage(its), source)
  },
  async relayClient(options) {
    const { openRelayClient } = await import('./relay/open.ts')
    return openRelayClient(options)
  },
}
