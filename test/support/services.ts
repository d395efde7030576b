import {
  backends,
  clusterIp,
  DROP,
  EXTERNAL,
  EXTERNAL_LOCAL,
  ip4,
  ip6,
  LOCAL,
  nodePort,
  REJECT,
  service,
  vip,
} from './frontends.ts'

export function everyKind(v6: boolean): ReturnType<typeof service>[] {
  const at = (prefix: number, n: number) => (v6 ? ip6(prefix, n) : ip4(10, prefix, 0, n))
  const name = (text: string) => `ns/${text}${v6 ? '-6' : ''}`
  const ranges = v6
    ? [
        { ip: ip6(0x10, 0), bits: 64 },
        { ip: ip6(0x11, 1), bits: 128 },
      ]
    : [
        { ip: ip4(10, 0, 0, 0), bits: 8 },
        { ip: ip4(192, 0, 2, 1), bits: 32 },
      ]
  const cluster = backends(3, { v6 })
  const local = backends(2, { v6, local: true })
  const both = { v6, cluster: [...cluster, ...local], local }
  return [
    service(name('plain'), [
      { ...both, name: 'http', frontends: [clusterIp(at(96, 1), 80)] },
      { ...both, name: 'dns', protocol: 'UDP', frontends: [clusterIp(at(96, 1), 53)] },
      { ...both, name: 'sctp', protocol: 'SCTP', frontends: [clusterIp(at(96, 1), 99)] },
    ]),
    service(name('here'), [{ ...both, frontends: [clusterIp(at(96, 2), 80, LOCAL)] }]),
    service(name('none'), [{ v6, frontends: [clusterIp(at(96, 3), 80, REJECT), nodePort(30003, REJECT)] }]),
    service(name('not-here'), [{ v6, frontends: [clusterIp(at(96, 4), 80, DROP)] }]),
    service(name('external'), [
      {
        ...both,
        frontends: [clusterIp(at(96, 5), 80), nodePort(30005, EXTERNAL), vip(at(200, 5), 80, EXTERNAL)],
      },
    ]),
    service(name('local'), [
      { ...both, frontends: [clusterIp(at(96, 6), 80), vip(at(200, 6), 80, EXTERNAL_LOCAL, ranges)] },
      { ...both, name: 'b', local: [], frontends: [vip(at(200, 6), 81, EXTERNAL_LOCAL, ranges)] },
      { v6, name: 'c', frontends: [vip(at(200, 6), 82, REJECT, ranges)] },
    ]),
    service(name('affine'), [
      {
        ...both,
        affinityTimeoutS: 10800,
        frontends: [clusterIp(at(96, 7), 80), nodePort(30007, EXTERNAL_LOCAL)],
      },
      {
        ...both,
        name: 'b',
        affinityTimeoutS: 60,
        frontends: [clusterIp(at(96, 7), 81, LOCAL), vip(at(200, 7), 80, EXTERNAL, ranges)],
      },
    ]),
  ]
}

/** Lists of 37 and 20 endpoints: more than iptables-nft-restore can send without privileges. */
export function largeService(v6: boolean): ReturnType<typeof service> {
  const at = (port: number) => clusterIp(v6 ? ip6(96, 8) : ip4(10, 96, 0, 8), port)
  return service(`ns/large${v6 ? '-6' : ''}`, [
    { v6, cluster: backends(37, { v6 }), frontends: [at(80)] },
    { v6, name: 'b', cluster: backends(20, { v6 }), affinityTimeoutS: 60, frontends: [at(81)] },
  ])
}

/** A Service with one ClusterIP and so many endpoints; `n` tells Services apart, `from` their endpoints. */
export function plainService(n: number, endpoints: number, from = 1): ReturnType<typeof service> {
  return service(`ns/many-${n}`, [
    {
      cluster: backends(endpoints, { from: n * 8 + from }),
      frontends: [clusterIp(ip4(10, 97, n >>> 8, n & 255), 80)],
    },
  ])
}
