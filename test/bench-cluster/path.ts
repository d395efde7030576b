import { execFileSync } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import type { ClusterSize } from '../bench/cluster.ts'
import { POD_GATEWAYS } from '../support/lab/address.ts'
import { vipOf } from './objects.ts'

const ROUNDS = '15'
const BATCH_US = '3000'
const NO_SERVICE = '10.111.255.254'

/**
 * Nanoseconds of processor time of a connection's first packet, from a socket of the node through the proxy's rules: to the
 * first, the middle and the last Service in the order of the rules, and to an address that is no Service's.
 */
export interface PathFigures {
  readonly first: number
  readonly middle: number
  readonly last: number
  readonly elsewhere: number
}

/** Measures in the namespace of this process, whose pods are behind `pod0`. */
export function pathCosts({ services }: ClusterSize): PathFigures {
  const vips = vipsInOrder(services)
  const ends = [vips[0] ?? '', vips[vips.length >> 1] ?? '', vips.at(-1) ?? '']
  const [first = 0, middle = 0, last = 0, elsewhere = 0] = firstPacketCosts([...ends, NO_SERVICE])
  return { first, middle, last, elsewhere }
}

/** Gives the cost for port 80 of each address. A rule behind all others drops the packets, so that none is a known connection's. */
export function firstPacketCosts(addresses: readonly string[]): readonly number[] {
  const [source = ''] = POD_GATEWAYS
  const targets = addresses.map(address => `${address}:80`)
  const chain = `chain out { type filter hook output priority 10; oifname "pod0" ip saddr ${source} drop; }`
  nft(`table ip bench { ${chain}; }`)
  try {
    const text = execFileSync(program(), [ROUNDS, BATCH_US, source, ...targets], { encoding: 'utf8' })
    return text.trim().split('\n').map(Number)
  } finally {
    nft('delete table ip bench')
  }
}

/** The Services in the order in which a packet meets their rules, or, where it meets no list, in ours. */
function vipsInOrder(services: number): readonly string[] {
  const rules = execFileSync('iptables-nft-save', ['-t', 'nat'], { encoding: 'utf8', maxBuffer: 2 ** 30 })
  const listed = [...rules.matchAll(/^-A KUBE-SERVICES -d (\S+)\/32 -p tcp .*--dport 80 /gm)]
  if (listed.length > 0) return listed.map(([, vip = '']) => vip)
  return Array.from({ length: services }, (_, index) => vipOf(index))
}

function nft(input: string): void {
  execFileSync('nft', ['-f', '-'], { input })
}

let built: string | undefined

/** Compiles path.c once. */
function program(): string {
  if (built !== undefined) return built
  const root = process.env.KPROBE_ROOT ?? '.'
  built = join(root, '.cache/bench-cluster/path')
  mkdirSync(dirname(built), { recursive: true })
  execFileSync('cc', ['-O2', '-Wall', '-o', built, join(root, 'test/bench-cluster/path.c')])
  return built
}
