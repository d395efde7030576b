import { execFileSync } from 'node:child_process'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Flow, Lab } from '../support/lab/lab.ts'

/** Rules that the laboratory knows nothing of, loaded by nft: what it sees must be what they say. */
const RULES = `
table ip oracle {
  chain rules {
    ip daddr 172.30.0.1 meta l4proto { tcp, udp, sctp } th dport 80 dnat to numgen random mod 2 map { 0 : 10.0.1.1 . 8080, 1 : 10.0.1.2 . 8081 }
    ip daddr 172.30.0.2 meta mark set 0x4000
    ip daddr 172.30.0.2 meta l4proto { tcp, udp, sctp } dnat to 10.0.1.3
    ip daddr 172.30.0.3 reject
    ip daddr 172.30.0.4 drop
  }
  chain pre { type nat hook prerouting priority -100; jump rules; }
  chain out { type nat hook output priority -100; jump rules; }
  chain post { type nat hook postrouting priority 100; meta mark 0x4000 masquerade fully-random; }
}
table ip6 oracle {
  chain rules {
    ip6 daddr fd00:172::1 meta l4proto { tcp, udp, sctp } th dport 80 dnat to numgen random mod 2 map { 0 : fd00:10::1:1 . 8080, 1 : fd00:10::1:2 . 8081 }
    ip6 daddr fd00:172::2 meta mark set 0x4000
    ip6 daddr fd00:172::2 meta l4proto { tcp, udp, sctp } dnat to fd00:10::1:3
    ip6 daddr fd00:172::3 reject
    ip6 daddr fd00:172::4 drop
  }
  chain pre { type nat hook prerouting priority -100; jump rules; }
  chain out { type nat hook output priority -100; jump rules; }
  chain post { type nat hook postrouting priority 100; meta mark 0x4000 masquerade fully-random; }
}
`

let lab: Lab

beforeAll(async () => {
  lab = await Lab.start({ alsoLocal: ['192.168.99.11'] })
  execFileSync('nft', ['-f', '-'], { input: RULES })
})

afterAll(async () => {
  await lab.close()
})

const SOURCES = {
  IPv4: { outside: '203.0.113.5', pod: '10.0.9.9', node: '192.168.0.2' },
  IPv6: { outside: '2001:db8:f::5', pod: 'fd00:10::9:9', node: '2001:db8::2' },
} as const

function flows(family: 'IPv4' | 'IPv6', target: string, port = 80): Flow[] {
  return (['outside', 'pod', 'node'] as const).flatMap(from =>
    (['TCP', 'UDP', 'SCTP'] as const).map(protocol => ({
      from,
      source: SOURCES[family][from],
      protocol,
      destination: target,
      port,
    })),
  )
}

test.each([
  ['IPv4', '172.30.0.', '10.0.1.1:8080', '10.0.1.2:8081'],
  ['IPv6', 'fd00:172::', '[fd00:10::1:1]:8080', '[fd00:10::1:2]:8081'],
] as const)(
  '%s: translated connections arrive at every endpoint, all of them, with right checksums',
  async (family, prefix, one, two) => {
    const wanted = flows(family, `${prefix}1`)
    const outcomes = await lab.trace(wanted, { tries: 40 })
    for (const [index, outcome] of outcomes.entries()) {
      expect(outcome).toMatchObject({ verdict: 'DNAT', sent: 40, lost: 0, badChecksums: 0 })
      expect([...outcome.endpoints.keys()].sort()).toEqual([one, two])
      expect([...outcome.sources]).toEqual([wanted[index]?.source])
    }
  },
)

test.each([
  ['IPv4', '172.30.0.', '10.255.255.254'],
  ['IPv6', 'fd00:172::', 'fd00:10::fffe'],
] as const)('%s: masquerading, rejecting and dropping are told apart', async (family, prefix, gateway) => {
  const masqueraded = await lab.trace(flows(family, `${prefix}2`), { tries: 8 })
  for (const outcome of masqueraded) {
    expect(outcome).toMatchObject({ verdict: 'DNAT', lost: 0, badChecksums: 0 })
    expect([...outcome.sources]).toEqual([gateway])
  }
  for (const outcome of await lab.trace(flows(family, `${prefix}3`), { tries: 8 }))
    expect(outcome.verdict).toBe('REJECT')
  for (const outcome of await lab.trace(flows(family, `${prefix}4`), { tries: 8 }))
    expect(outcome.verdict).toBe('DROP')
  for (const outcome of await lab.trace(flows(family, `${prefix}5`), { tries: 8 }))
    expect(outcome.verdict).toBe('PASS')
})

test('a closed TCP port of the node itself is not a verdict of any rule', async () => {
  const outcomes = await lab.trace([
    ...(['outside', 'pod', 'node'] as const).map(
      from =>
        ({
          from,
          source: SOURCES.IPv4[from],
          protocol: 'TCP',
          destination: '192.168.99.11',
          port: 31000,
        }) as const,
    ),
    { from: 'node', source: '127.0.0.1', protocol: 'TCP', destination: '127.0.0.1', port: 31000 },
    { from: 'node', source: '127.0.0.1', protocol: 'UDP', destination: '127.0.0.1', port: 31000 },
  ])
  expect(outcomes.map(({ verdict }) => verdict)).toEqual(['PASS', 'PASS', 'PASS', 'PASS', 'PASS'])
})

test('some lost among the translated show as mixed', async () => {
  execFileSync('nft', ['insert rule ip oracle rules ip daddr 172.30.0.1 numgen inc mod 4 0 drop'])
  const [outcome] = await lab.trace([
    {
      from: 'outside',
      source: '203.0.113.5',
      protocol: 'TCP',
      destination: '172.30.0.1',
      port: 80,
      tries: 40,
    },
  ])
  expect(outcome).toMatchObject({ verdict: 'MIXED', sent: 40, lost: 10 })
})
