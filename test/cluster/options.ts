import { parseArgs } from 'node:util'
import { LIFE_SETS, type LifeSet } from './life-sets.ts'
import { FORMS, type Form } from './pods.ts'
import {
  DEFAULTS,
  FAMILY_NAMES,
  NODES_MAX,
  nameOfProcess,
  type Parameters,
  PROXY_NAMES,
  type ProxyName,
} from './site.ts'
import { SUITES, type Suite } from './suites.ts'

/** Modes of each proxy that a cluster can have here. */
const MODES: Readonly<Record<ProxyName, readonly string[]>> = {
  kprobe: ['nftables', 'iptables', 'userspace'],
  'kube-proxy': ['nftables', 'iptables'],
}
const NET_MAX = 255
const PROCS_MAX = 32
const ROUNDS_MAX = 1_000
const MEMBERS_MAX = 5

export const COMMANDS = {
  all: 'up, run and down, for each --proxy and each --mode; what runs without a command',
  up: 'starts a cluster, with a proxy and DNS',
  proxy: 'replaces the proxy of a cluster by --proxy in --mode',
  run: 'runs sets of tests in a cluster that is up',
  life: 'runs what happens to clusters, with traffic in a cluster that is up: proxies killed, deleted, replaced',
  exec: 'runs a command: exec n1 nft list ruleset; exec control-plane ip route',
  down: 'ends a cluster and removes everything that it has left, however it ended',
} as const
export type CommandName = keyof typeof COMMANDS
/** Those that this program starts itself. */
const HIDDEN = ['load-balancer', 'traffic', 'ask'] as const
type HiddenCommand = (typeof HIDDEN)[number]

export interface Options {
  readonly command: CommandName | HiddenCommand | 'sets' | 'help'
  readonly parameters: Parameters
  readonly proxies: readonly ProxyName[]
  readonly modes: readonly string[]
  readonly form: Form
  readonly suites: readonly Suite[]
  readonly lifeSets: readonly LifeSet[]
  readonly procs: number
  readonly rounds: number
  readonly previous: string | undefined
  readonly only: string | undefined
  readonly compare: boolean
  readonly store: boolean
  readonly fresh: boolean
  /** Of `exec`. */
  readonly words: readonly string[]
}

export const HELP = `A real Kubernetes cluster on this machine, and upstream's own tests of Services in it.

npm run test:cluster -- [COMMAND] [SET...] [OPTION...]

Commands:
${Object.entries(COMMANDS)
  .map(([name, what]) => `  ${name.padEnd(12)} ${what}`)
  .join('\n')}
What it needs is built by node test/cluster/build.mjs, once: 20 to 40 minutes.

Sets of tests, conformance by default:
${SUITES.map(({ name, what }) => `  ${name.padEnd(12)} ${what}`).join('\n')}

Sets of events of life, each with the proxies that it needs, in a cluster of their own:
${LIFE_SETS.map(({ name, what }) => `  ${name.padEnd(12)} ${what}`).join('\n')}

Options, with their defaults:
  --name ${DEFAULTS.name}          names the cluster: two of different names can run at once; one that goes after its
                         tests has a name of its own
  --nodes ${DEFAULTS.nodes}
  --zones ${DEFAULTS.zones}              the nodes are spread over them by turns
  --families ipv4,ipv6   or one of them; the first one is the primary family
  --net ${DEFAULTS.net}               every address is in 10.N.0.0/16 and fd00:N::/32, but a client's outside: 198.18.N.1
  --proxy kprobe         or kube-proxy, or both with a comma
  --mode nftables        or iptables, or userspace (kprobe), or several with commas
  --as process           kprobe is a process of the checkout; daemonset: pods of deploy/kubernetes with the project's
                         image; relay: the same, with relays on two nodes; chart: those of the Helm chart, by helm;
                         kubeadm: pods of kubeadm's kube-proxy, whose image alone is another one
  --etcd 1               members of the store; the event quorum needs 3
  --procs 4              tests at once
  --only PATTERN         of the sets, tests with such names alone; of life, such events
  --rounds 3             of life: how often a deployment is rolled, and a node gets its proxy
  --fresh                of life: in a cluster of its own, which is gone afterwards
  --previous COMMIT      of life and upgrade: the version that an upgrade comes from, which is built from this commit; by default
                         the newest release before HEAD, by its tag
  --compare              fails when a test that passes with kube-proxy (test/cluster/baseline) does not
  --store                writes the results of kube-proxy there
`

/** Throws one error about everything that is wrong with the arguments. */
export function parseOptions(args: readonly string[]): Options {
  const { values, positionals } = parse(args)
  if (values.help === true) return optionsFrom('help', [], values)
  const [first = 'all', ...rest] = positionals
  const isCommand = (word: string): word is CommandName | HiddenCommand =>
    word in COMMANDS || HIDDEN.some(one => one === word)
  if (isCommand(first)) return optionsFrom(first, rest, values)
  if (namesOf(LIFE_SETS).includes(first)) return optionsFrom('sets', positionals, values)
  if (namesOf(SUITES).includes(first)) return optionsFrom('all', positionals, values)
  const known = [...Object.keys(COMMANDS), ...namesOf(SUITES), ...namesOf(LIFE_SETS)]
  throw new Error(`there is no command or set ${first}; there are ${known.join(', ')}`)
}

function parse(args: readonly string[]) {
  const text = { type: 'string' } as const
  const flag = { type: 'boolean' } as const
  // Options of a command that is executed are its own.
  const head = args[0] !== 'exec' ? args.length : args[1] === '--name' ? 3 : 1
  const own = [...args.slice(0, head), ...(head < args.length ? ['--'] : []), ...args.slice(head)]
  return parseArgs({
    args: own,
    allowPositionals: true,
    options: {
      ...{
        name: text,
        nodes: text,
        zones: text,
        families: text,
        net: text,
        proxy: text,
        mode: text,
        as: text,
      },
      ...{
        procs: text,
        rounds: text,
        previous: text,
        only: text,
        etcd: text,
        compare: flag,
        store: flag,
        fresh: flag,
        help: { ...flag, short: 'h' },
      },
    },
  })
}

/** The words of others are their own. */
const TAKES_SETS: readonly Options['command'][] = ['all', 'run']

type Values = ReturnType<typeof parse>['values']

function optionsFrom(command: Options['command'], words: readonly string[], values: Values): Options {
  const problems: string[] = []
  const number = (
    name: 'nodes' | 'zones' | 'net' | 'procs' | 'rounds' | 'etcd',
    fallback: number,
    [least, most]: readonly [number, number],
  ) => {
    const value = values[name] === undefined ? fallback : Number(values[name])
    if (Number.isInteger(value) && value >= least && value <= most) return value
    problems.push(`--${name} ${values[name]}: not a number from ${least} to ${most}`)
    return fallback
  }
  const list = <T extends string>(flag: string, text: string, known: readonly T[]): readonly T[] => {
    const chosen = text.split(',')
    for (const word of chosen)
      if (!known.some(one => one === word)) problems.push(`${flag} ${word}: not one of ${known.join(', ')}`)
    return known.filter(one => chosen.includes(one)).sort((a, b) => chosen.indexOf(a) - chosen.indexOf(b))
  }
  // Several copies of the project may test at once on one machine.
  const isOwn = command === 'all' || command === 'sets' || values.fresh === true
  const name = values.name ?? (isOwn ? nameOfProcess('all') : DEFAULTS.name)
  if (!/^[a-z0-9]{1,20}$/.test(name)) problems.push(`--name ${name}: not 1 to 20 small letters and digits`)
  const proxies = list('--proxy', values.proxy ?? 'kprobe', PROXY_NAMES)
  const known = MODES.kprobe.filter(mode => proxies.every(proxy => MODES[proxy].includes(mode)))
  const [form = 'process'] = list('--as', values.as ?? 'process', FORMS)
  if (form !== 'process' && form !== 'kubeadm' && proxies.includes('kube-proxy'))
    problems.push(`--as ${form}: kprobe alone`)
  if (values.fresh === true && command !== 'life') problems.push('--fresh: of life alone')
  const suiteWords = !TAKES_SETS.includes(command) || words.length === 0 ? 'conformance' : words.join(',')
  const suiteNames = list('set', suiteWords, namesOf(SUITES))
  const lifeSetNames = command === 'sets' ? list('set', words.join(','), namesOf(LIFE_SETS)) : []
  if (command === 'sets') problems.push(...fixedBySets(values))
  const options: Options = {
    command,
    parameters: {
      name,
      nodes: number('nodes', DEFAULTS.nodes, [1, NODES_MAX]),
      zones: number('zones', DEFAULTS.zones, [1, NODES_MAX]),
      families: list('--families', values.families ?? DEFAULTS.families.join(','), FAMILY_NAMES),
      net: number('net', DEFAULTS.net, [0, NET_MAX]),
      members: number('etcd', DEFAULTS.members, [1, MEMBERS_MAX]),
    },
    proxies,
    modes: list('--mode', values.mode ?? 'nftables', known),
    form,
    suites: SUITES.filter(suite => suiteNames.includes(suite.name)),
    lifeSets: LIFE_SETS.filter(({ name }) => lifeSetNames.includes(name)),
    procs: number('procs', 4, [1, PROCS_MAX]),
    rounds: number('rounds', 3, [1, ROUNDS_MAX]),
    only: values.only,
    previous: values.previous,
    compare: values.compare === true,
    store: values.store === true,
    fresh: values.fresh === true,
    words,
  }
  if (problems.length > 0) throw new Error(problems.join('\n'))
  return options
}

function namesOf(sets: readonly { readonly name: string }[]): readonly string[] {
  return sets.map(({ name }) => name)
}

/** What is wrong with options that choose what each set of events chooses itself. */
function fixedBySets(values: Values): readonly string[] {
  const flags = ['proxy', 'mode', 'as', 'only'] as const
  return flags
    .filter(flag => values[flag] !== undefined)
    .map(flag => `--${flag}: not of sets of events, which have their own; life takes it`)
}
