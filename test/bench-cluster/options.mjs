// The command line of npm run bench:cluster.
import { parseArgs } from 'node:util'

const COMMANDS = ['both', 'kprobe', 'kube-proxy', 'table']

export const HELP = `npm run bench:cluster -- [COMMAND] [FLAG...] [SIZE...]

Measures kprobe and kube-proxy beside each other, on the objects of one real API server.

  both           both in nftables mode, once each; the default
  kprobe         kprobe alone
  kube-proxy     kube-proxy alone
  table          both in nftables and in iptables mode, by turns; writes docs/benchmarks.md and its figures

  SIZE           SERVICESxENDPOINTS; default: 1000x10 10000x2, and for the table 30000x1 1x10000 as well
  --baseline     add the kube-proxy of test/bench-cluster/kube-proxy-1.36, which Go builds once
  --runs=N       of the table: runs of each proxy and mode at each size (default: 3)
  --beside=TEXT  of the table: what else runs on the machine, which has to be idle without it
  --help         print this
`
const OPTIONS = {
  baseline: { type: 'boolean', default: false },
  runs: { type: 'string' },
  beside: { type: 'string' },
  help: { type: 'boolean', default: false, short: 'h' },
}

/** Throws an error about the first thing that is wrong. With --help, nothing else counts. */
export function parseOptions(args) {
  const { values, positionals } = parseArgs({ args, options: OPTIONS, allowPositionals: true })
  if (values.help) return { help: true }
  const { runs = '3', beside, baseline } = values
  const [first = 'both', ...others] = positionals
  const isCommand = COMMANDS.includes(first)
  const command = isCommand ? first : 'both'
  const sizes = (isCommand ? others : positionals).map(parseSize)
  for (const flag of ['runs', 'beside'])
    if (values[flag] !== undefined && command !== 'table') throw new Error(`--${flag} is of table alone`)
  if (!/^[1-9]\d?$/.test(runs)) throw new Error(`--runs=${runs} is not a number from 1 to 99`)
  return { command, sizes, runs: Number(runs), beside, baseline, help: false }
}

function parseSize(text) {
  const [, services, endpoints] = /^([1-9]\d*)x([1-9]\d*)$/.exec(text) ?? []
  if (endpoints === undefined)
    throw new Error(`${text} is neither a command (${COMMANDS.join(', ')}) nor SERVICESxENDPOINTS`)
  return { services: Number(services), endpoints: Number(endpoints) }
}
