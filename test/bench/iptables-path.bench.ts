import { type ChildProcess, spawn } from 'node:child_process'
import { performance } from 'node:perf_hooks'
import { createInterface } from 'node:readline'
import { systemClock } from '../../src/base/clock.ts'
import { formatIp, type Ip } from '../../src/base/ip.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import type { ObservedChain } from '../../src/kernel/nft/state.ts'
import { readRule } from '../../src/kernel/xt/read.ts'
import { IptablesPlane } from '../../src/modes/iptables/plane.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../src/modes/iptables/settings.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { clusterObjects } from './cluster.ts'
import { buildSender, connectToNowhere, nanosecondsTo } from './packet-path.ts'
import { createPipeline, type Pipeline, pipelineOf } from './pipeline.ts'
import { goal, median, print } from './report.ts'

/*
 * What rules cost a new connection: SYNs out of a socket through LOCAL_OUT, dropped behind the last rule of ours and before
 * connection tracking keeps them, so that each packet is a connection's first. A network namespace for each mode, all of
 * them measured by turns.
 */

const MODES = ['no rules', 'iptables', 'optimized', 'nftables'] as const
type Mode = (typeof MODES)[number]
const SIZES = [100, 1_000, 10_000]
const ROUNDS = 25
/** No Service's, and the last of every list that is divided by the last byte of an address. */
const MISSING = '192.0.2.255'
/** With the optimizer, what 10,000 Services cost beside what 100 cost. */
const GROWTH_MAX = 1.5

interface Figures {
  readonly first: number
  readonly last: number
  readonly missing: number
}

interface Held {
  readonly loadMs: number
  /** Rules that are asked until the first and the last Service is found; 0 where nobody counts. */
  readonly rules: { readonly first: number; readonly last: number }
}

/** In a namespace of its own: fills it, and then measures each time it is asked to. */
async function hold(mode: string, services: number): Promise<void> {
  connectToNowhere()
  const pipeline = pipelineFor(mode)
  const start = performance.now()
  await pipeline?.load(clusterObjects({ services, endpoints: 2 }))
  const loadMs = performance.now() - start
  const ends = mode === 'iptables' || mode === 'optimized' ? await endsOfLists() : endsOfRange(services)
  const held: Held = { loadMs, rules: { first: ends.first.rules, last: ends.last.rules } }
  console.log(JSON.stringify(held))
  const targets = [formatIp(ends.first.ip), formatIp(ends.last.ip), MISSING].map(ip => `${ip}:80`)
  for await (const _line of createInterface({ input: process.stdin })) {
    const [first = 0, last = 0, missing = 0] = nanosecondsTo(targets)
    console.log(JSON.stringify({ first, last, missing } satisfies Figures))
  }
  await pipeline?.stop()
}

function pipelineFor(mode: string): Pipeline | undefined {
  if (mode === 'no rules') return undefined
  if (mode === 'nftables') return createPipeline()
  const client = openClient()
  const options = { ...DEFAULT_IPTABLES_OPTIONS, optimize: mode === 'optimized' }
  return pipelineOf(new IptablesPlane({ client, options }), () => client.close())
}

function openClient() {
  return createNftClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock: systemClock })
}

interface End {
  readonly ip: Ip
  readonly rules: number
}

interface Ends {
  readonly first: End
  readonly last: End
}

function endsOfRange(services: number): Ends {
  const ip = (index: number): Ip => String.fromCharCode(10, 96, index >> 8, index & 255)
  return { first: { ip: ip(0), rules: 0 }, last: { ip: ip(services - 1), rules: 0 } }
}

/** The entries that a packet meets soonest and latest, as the rules stand in the kernel. */
async function endsOfLists(): Promise<Ends> {
  const client = openClient()
  const { observed } = await client.listChains([{ family: 'ip', table: 'nat' }])
  await client.close()
  const chains = observed.get('ip nat')?.chains ?? new Map<string, ObservedChain>()
  const entries = [...entriesFrom(chains, 'KUBE-SERVICES', 0)].sort((a, b) => a.rules - b.rules)
  const [first, last] = [entries[0], entries.at(-1)]
  if (first === undefined || last === undefined) throw new Error('there are no entries')
  return { first, last }
}

const ONE_ADDRESS = '\xff'.repeat(4)

function* entriesFrom(
  chains: ReadonlyMap<string, ObservedChain>,
  name: string,
  before: number,
): Iterable<End> {
  for (const [index, { compiled }] of (chains.get(name)?.rules ?? []).entries()) {
    const { destination, target } = readRule(compiled, 'ip')
    const rules = before + index + 1
    if (destination?.mask === ONE_ADDRESS) yield { ip: destination.ip, rules }
    else if (target?.kind === 'jump' || target?.kind === 'goto') {
      // The chain of NodePorts has no addresses in it.
      yield* entriesFrom(chains, target.chain, rules)
    }
  }
}

async function compare(): Promise<void> {
  buildSender()
  const results = new Map<number, ReadonlyMap<Mode, Result>>()
  for (const services of SIZES) results.set(services, await measure(services))
  for (const [services, of] of results) report(services, of)
  const at = (services: number, key: keyof Figures) =>
    results.get(services)?.get('optimized')?.figures[key] ?? 0
  const rows = (['first', 'last', 'missing'] as const).map(key => {
    const growth = at(10_000, key) / at(100, key)
    return { Service: key, '10,000 / 100': `${growth.toFixed(2)} ${goal(growth, GROWTH_MAX)}` }
  })
  print('optimized, by the number of Services', rows)
}

interface Result {
  readonly held: Held
  readonly figures: Figures
}

async function measure(services: number): Promise<ReadonlyMap<Mode, Result>> {
  const holders = MODES.map(mode => ({ mode, holder: new Holder(mode, services), figures: [] as Figures[] }))
  const held: Held[] = []
  // One after the other: nobody loads while somebody is timed.
  for (const { holder } of holders) held.push(await holder.loaded())
  for (let round = 0; round < ROUNDS; round++)
    for (const { holder, figures } of holders) figures.push(await holder.measure())
  for (const { holder } of holders) await holder.end()
  return new Map(
    holders.flatMap(({ mode, figures }, index) => {
      const middle = (key: keyof Figures) => median(figures.map(each => each[key]))
      const own = held[index]
      return own === undefined
        ? []
        : [
            [
              mode,
              {
                held: own,
                figures: { first: middle('first'), last: middle('last'), missing: middle('missing') },
              },
            ],
          ]
    }),
  )
}

/** A process that holds one mode's rules. */
class Holder {
  readonly #child: ChildProcess
  readonly #lines: AsyncIterator<string>
  readonly #mode: Mode
  readonly #services: number
  readonly #exit: Promise<void>

  constructor(mode: Mode, services: number) {
    this.#mode = mode
    this.#services = services
    const bundle = process.env.KPROBE_BENCH_BUNDLE
    if (bundle === undefined) throw new Error('start benchmarks with: npm run bench')
    this.#child = spawn('unshare', ['-n', process.execPath, bundle, 'hold', mode, String(services)], {
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    const { stdout } = this.#child
    if (stdout === null) throw new Error('no standard output')
    this.#lines = createInterface({ input: stdout })[Symbol.asyncIterator]()
    this.#exit = new Promise(resolve => this.#child.once('exit', () => resolve()))
  }

  async loaded(): Promise<Held> {
    const held: Held = JSON.parse(await this.#line())
    return held
  }

  async measure(): Promise<Figures> {
    this.#child.stdin?.write('\n')
    const figures: Figures = JSON.parse(await this.#line())
    return figures
  }

  async end(): Promise<void> {
    this.#child.stdin?.end()
    await this.#exit
  }

  async #line(): Promise<string> {
    const { value, done } = await this.#lines.next()
    if (done === true) throw new Error(`${this.#mode} with ${this.#services} Services ended`)
    return value
  }
}

function report(services: number, of: ReadonlyMap<Mode, Result>): void {
  const plain = of.get('iptables')?.figures
  const usual = of.get('nftables')?.figures
  const rows = [...of].map(([mode, { held, figures }]) => {
    const beside = (key: keyof Figures): string => {
      const ratio = (other: Figures | undefined) => (figures[key] / (other?.[key] ?? 1)).toFixed(2)
      return `${figures[key].toFixed(0)} (${ratio(plain)}, ${ratio(usual)})`
    }
    const { first, last } = held.rules
    return {
      mode,
      first: beside('first'),
      last: beside('last'),
      missing: beside('missing'),
      'rules first': first === 0 ? '' : String(first),
      'rules last': last === 0 ? '' : String(last),
      'load ms': mode === 'no rules' ? '' : held.loadMs.toFixed(0),
    }
  })
  print(
    `${services} Services, ns of processor time per new connection (beside plain iptables, beside the nftables mode)`,
    rows,
  )
}

const [what, mode, size] = process.argv.slice(2)
if (what === 'hold') await hold(mode ?? '', Number(size))
else await compare()
