import type { Octets } from '../../src/base/octets.ts'
import { compileRule } from '../../src/kernel/xt/compile.ts'
import { printRule } from '../../src/kernel/xt/print.ts'
import { readRule } from '../../src/kernel/xt/read.ts'
import type { XtAddress, XtMatch, XtRule } from '../../src/kernel/xt/rule.ts'
import { ByteWriter } from '../../src/netlink/attribute.ts'
import { goal, print } from './report.ts'

/** Rules of iptables as kube-proxy writes them for ClusterIPs: into bytes, out of bytes, and as text. */

const RUNS = 15
const SERVICES = 1_000
const ENDPOINTS = 10
const TCP = { number: 6, inverted: false } as const

function host(...bytes: readonly number[]): XtAddress {
  return { ip: String.fromCharCode(...bytes), mask: '\xff\xff\xff\xff', inverted: false }
}

function* serviceRules(service: number): Generator<XtRule> {
  const name = `namespace-${service % 50}/service-${service}:http`
  const destination = host(10, 96, service >> 8, service & 255)
  const port: XtMatch = { kind: 'tcp', destinationPorts: { from: 80, to: 80, inverted: false } }
  const matches: readonly XtMatch[] = [{ kind: 'comment', text: `${name} cluster IP` }, port]
  const chain = `KUBE-SVC-${`${service}`.padStart(16, 'A')}`
  yield { protocol: TCP, destination, matches, target: { kind: 'jump', chain } }
  const source = { ip: '\x0a\0\0\0', mask: '\xff\0\0\0', inverted: true }
  yield { protocol: TCP, source, destination, matches, target: { kind: 'jump', chain: 'KUBE-MARK-MASQ' } }
  for (let endpoint = 0; endpoint < ENDPOINTS; endpoint++) yield* endpointRules({ service, endpoint, name })
}

function* endpointRules(one: {
  readonly service: number
  readonly endpoint: number
  readonly name: string
}): Generator<XtRule> {
  const { service, endpoint, name } = one
  const source = host(10, (service >> 6) & 255, (service * 4) & 255, endpoint + 1)
  const chain = `KUBE-SEP-${`${service * 100 + endpoint}`.padStart(16, 'B')}`
  const comment: XtMatch = { kind: 'comment', text: name }
  const to: XtMatch = { kind: 'comment', text: `${name} -> 10.1.${service & 255}.${endpoint}:8080` }
  const chance: XtMatch = { kind: 'statistic', probability: Math.round(2 ** 31 / (ENDPOINTS - endpoint)) }
  const matches = endpoint === ENDPOINTS - 1 ? [to] : [to, chance]
  yield { matches, target: { kind: 'jump', chain } }
  yield { source, matches: [comment], target: { kind: 'jump', chain: 'KUBE-MARK-MASQ' } }
  yield {
    protocol: TCP,
    matches: [comment, { kind: 'tcp' }],
    target: { kind: 'DNAT', ip: source.ip, port: 8080 },
  }
}

const rules = Array.from({ length: SERVICES }, (_, service) => [...serviceRules(service)]).flat()

/** The least of several runs, in microseconds of processor time a rule: others may be at work on this machine. */
function perRule(work: () => void): number {
  let least = Number.POSITIVE_INFINITY
  for (let run = 0; run < RUNS; run++) {
    const before = process.cpuUsage()
    work()
    const { user, system } = process.cpuUsage(before)
    least = Math.min(least, (user + system) / rules.length)
  }
  return least
}

let bytes: readonly Octets[] = []
let read: readonly XtRule[] = []
const out = new ByteWriter(32 << 20)
const passing = perRule(() => {
  for (const rule of rules) compileRule(rule, 'ip')
})
const kept = perRule(() => {
  bytes = rules.map(rule => compileRule(rule, 'ip').compiled)
})
const writing = perRule(() => {
  out.length = 0
  for (const rule of rules) out.octets(compileRule(rule, 'ip').compiled)
})
const reading = perRule(() => {
  read = bytes.map(each => readRule(each, 'ip'))
})
const printing = perRule(() => {
  for (const rule of read) printRule(rule, 'ip')
})

const title = `rules of iptables, ${rules.length} of ${SERVICES} Services with ${ENDPOINTS} endpoints, us of CPU a rule`
print(title, [
  {
    compile: `${passing.toFixed(2)} ${goal(passing, 1.5)}`,
    'compile, all kept': kept.toFixed(2),
    'compile and write': writing.toFixed(2),
    'bytes a rule': (out.length / rules.length).toFixed(0),
    read: reading.toFixed(2),
    print: printing.toFixed(2),
  },
])
