import { execFileSync } from 'node:child_process'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { EMPTY_STATE } from '../../src/modes/nftables/state.ts'
import { CLUSTER, clusterIp, EXTERNAL, ip4, nodePort, service, table, vip } from '../support/frontends.ts'
import { Lab } from '../support/lab/lab.ts'
import { commitAll, type KernelPlane, openPlane } from '../support/pipeline.ts'
import { parseRow } from '../support/scenario.ts'
import { expectedLine, flowAnywhere, seenLine } from '../support/scenario-outcome.ts'
import { render } from '../unit/modes/nftables/inspect.ts'

/* Other programs that translate destinations on this node, with rules as they write them. */

const DNAT = 'tcp dport { 80, 30080, 8080 } counter dnat to 10.99.0.9:9999'
const LOCAL = 'fib daddr type local counter'

/** What iptables makes of `-A PREROUTING -m addrtype --dst-type LOCAL -j CHAIN`. */
function iptablesNat(chain: string, extra = ''): string {
  return `table ip nat {
    chain ${chain} { ${DNAT}; }
    chain PREROUTING { type nat hook prerouting priority -100; ${extra} ${LOCAL} jump ${chain}; }
    chain OUTPUT { type nat hook output priority -100; ip daddr != 127.0.0.0/8 ${LOCAL} jump ${chain}; }
  }`
}

const NEIGHBORS: Readonly<Record<string, string>> = {
  'portmap of the CNI plugins with nftables': `table ip cni_hostport {
    chain hostports { ${DNAT}; }
    chain prerouting { type nat hook prerouting priority -100; jump hostports; }
    chain output { type nat hook output priority -100; fib daddr type local jump hostports; }
  }`,
  'portmap of the CNI plugins with iptables': iptablesNat('CNI-HOSTPORT-DNAT'),
  'portmap before CVE-2019-9946, for all destinations': `table ip nat {
    chain CNI-HOSTPORT-DNAT { ${DNAT}; }
    chain PREROUTING { type nat hook prerouting priority -100; jump CNI-HOSTPORT-DNAT; }
  }`,
  'Docker with iptables': iptablesNat('DOCKER'),
  'Docker with nftables': `table ip docker-bridges {
    chain nat-prerouting-and-output { ${DNAT}; }
    chain nat-PREROUTING { type nat hook prerouting priority -100; ${LOCAL} jump nat-prerouting-and-output; }
    chain nat-OUTPUT { type nat hook output priority -100; ${LOCAL} jump nat-prerouting-and-output; }
  }`,
  'Calico with iptables': iptablesNat('cali-fip-dnat', 'counter jump cali-fip-dnat;'),
  firewalld: `table inet firewalld {
    chain nat_PRE_public_allow { meta nfproto ipv4 ${DNAT}; }
    chain nat_PREROUTING { type nat hook prerouting priority -90; jump nat_PRE_public_allow; }
    chain nat_OUTPUT { type nat hook output priority -90; jump nat_PRE_public_allow; }
  }`,
}

const PACKETS = `
  pod     TCP 172.30.0.1:80 -> 10.21.0.1:8080 kept
  node    TCP 172.30.0.1:80 -> 10.21.0.1:8080 kept
  outside TCP 198.51.100.4:80 -> 10.21.0.1:8080 masqueraded
  outside TCP 192.168.0.2:30080 -> 10.21.0.1:8080 masqueraded
  pod     TCP 172.30.0.1:8080 -> reject
`
/** A host port that is no port of a Service. */
const OF_NEIGHBOR = `
  outside TCP 192.168.0.2:8080 -> 10.99.0.9:9999 kept
`

const SERVICES = table([
  service('ns1/web', [
    {
      cluster: [{ ip: ip4(10, 21, 0, 1), port: 8080, local: false }],
      frontends: [
        clusterIp(ip4(172, 30, 0, 1), 80, CLUSTER),
        vip(ip4(198, 51, 100, 4), 80, EXTERNAL),
        nodePort(30_080, EXTERNAL),
      ],
    },
  ]),
])

let lab: Lab
let kernel: KernelPlane

beforeAll(async () => {
  lab = await Lab.start()
  kernel = openPlane({})
})
beforeEach(() => {
  nft('flush ruleset')
})
afterAll(async () => {
  await kernel.client.close()
  await lab.close()
})

function nft(rules: string): void {
  execFileSync('nft', ['-f', '-'], { input: rules })
}

const serve = () => commitAll(kernel.plane, EMPTY_STATE, render(SERVICES))

async function expectPackets(rowsOfTable: string): Promise<void> {
  const rows = rowsOfTable.split('\n').flatMap(line => parseRow('packets', line))
  const outcomes = await lab.trace(rows.map(flowAnywhere))
  const seen = rows.flatMap((row, index) => {
    const outcome = outcomes[index]
    return outcome === undefined ? [] : [seenLine(row, outcome, new Map())]
  })
  expect(seen).toEqual(rows.map(expectedLine))
}

describe.each(Object.entries(NEIGHBORS))('beside %s', (_, rules) => {
  it.each(['before', 'after'])('Services are served when its chains were made %s', async when => {
    if (when === 'before') nft(rules)
    await serve()
    if (when === 'after') nft(rules)
    await expectPackets(`${PACKETS}${OF_NEIGHBOR}`)
  })
})
