import { execFileSync } from 'node:child_process'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { finish, systemClock } from '../../src/base/clock.ts'
import type { Config } from '../../src/config/config.ts'
import { KERNEL } from '../../src/daemon/open.ts'
import { findMode } from '../../src/modes/registry.ts'
import { backends, EXTERNAL, nodePort, service, table } from '../support/frontends.ts'
import { Lab } from '../support/lab/lab.ts'
import { parseFlags } from '../support/parse-flags.ts'
import { commitAll } from '../support/pipeline.ts'

/* KEP-6032: the rules of nftables mode about node ports at localhost, with real packets and the real nft. */

let lab: Lab

beforeAll(async () => {
  lab = await Lab.start()
})

afterAll(async () => {
  await lab.close()
})

const nft = (args: readonly string[], input = ''): string =>
  execFileSync('nft', args, { encoding: 'utf8', input })

const frontends = [nodePort(30_080, EXTERNAL)]
const WANTED = table(
  [
    service('ns/web', [
      { frontends, cluster: backends(1) },
      { frontends, protocol: 'SCTP', cluster: backends(1) },
      { frontends, protocol: 'SCTP', v6: true, cluster: backends(1, { v6: true }) },
    ]),
  ],
  { forwardedAtLocalhost: ['IPv4', 'IPv6'] },
)

function configOf(...flags: readonly string[]): Config {
  const parsed = parseFlags(['--source=file:/objects', ...flags], { hostName: 'here' })
  if (parsed.kind === 'errors') throw new Error(JSON.stringify(parsed.errors))
  return parsed.value.config
}

const REJECTED = 'kubeproxy_nftables_localhost_nodeport_rejected_packets_total'

it('rejects SCTP to node ports at localhost, counts it by family, and is loaded as it is printed', async () => {
  const config = configOf('--nodeport-addresses=primary,localhost')
  const context = { config, clock: systemClock, sockets: KERNEL }
  await findMode('nftables').open<Promise<void>>(context, async opened => {
    const { plane } = opened
    opened.start()
    const wanted = finish(plane.render(WANTED, { base: plane.empty, without: new Set() }))
    await commitAll(plane, plane.empty, wanted)
    const flow = { from: 'node', protocol: 'SCTP', tries: 3 } as const
    const [v4, v6, other] = await lab.trace([
      { ...flow, source: '127.0.0.1', destination: '127.0.0.1', port: 30_080 },
      { ...flow, source: '::1', destination: '::1', port: 30_080 },
      { ...flow, source: '127.0.0.1', destination: '127.0.0.1', port: 30_081 },
    ])
    expect([v4?.verdict, v6?.verdict]).toEqual(['REJECT', 'REJECT'])
    expect(other?.verdict).not.toBe('DNAT')
    const metrics = (await opened.metrics?.(wanted)) ?? {}
    expect(metrics[REJECTED]?.read()).toEqual([
      [{ ip_family: 'IPv4', protocol: 'SCTP' }, 3],
      [{ ip_family: 'IPv6', protocol: 'SCTP' }, 3],
    ])
    const saved = nft(['list', 'ruleset'])
    nft(['flush', 'ruleset'])
    nft(['-f', '-'], saved)
    const { state } = await plane.observe()
    expect([...finish(plane.diff(state, wanted)).describe()]).toEqual([])
    await plane.cleanup()
    expect(nft(['list', 'ruleset'])).toBe('')
    await opened.close()
  })
})
