import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { text } from 'node:stream/consumers'
import { findPrograms } from './binaries.ts'
import { requireHelm } from './chart.ts'
import {
  type Cluster,
  openCluster,
  saveLogs,
  siteOf,
  startCluster,
  startDns,
  type UpOptions,
} from './cluster.ts'
import { kubeconfigOf } from './control-plane.ts'
import { leftoversOf, removeCluster } from './leftovers.ts'
import { lifeTable, runLife } from './life.ts'
import type { LifeRun } from './life-sets.ts'
import { accessOf, LoadBalancer } from './load-balancer.ts'
import { askAll } from './many-clients.ts'
import { HELP, type Options, parseOptions } from './options.ts'
import { releaseBefore } from './previous.ts'
import { logOf, type RunningProxy, runningProxy, startProxies, stopProxies } from './proxies.ts'
import {
  type Baseline,
  baselineOf,
  countsOf,
  holdFolder,
  type Report,
  tableOf,
  withPart,
  worseThan,
} from './report.ts'
import { planSite } from './site.ts'
import { focusOf, runSuite, type Suite } from './suites.ts'
import { runTraffic } from './traffic.ts'

/** The top folder, and this program as one file: see run.mjs. */
const ROOT = process.env.KPROBE_ROOT ?? process.cwd()
const PROGRAM = process.env.KPROBE_CLUSTER_PROGRAM ?? process.argv[1] ?? ''
const RESULTS = join(ROOT, '.cache/cluster')
const BASELINES = join(ROOT, 'test/cluster/baseline')

/** What a command needs that starts or uses a cluster. */
type Session = Omit<UpOptions, 'isTied'>

const began = performance.now()
const abort = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
  process.once(signal, () => abort.abort(new Error(`interrupted by ${signal}`)))

try {
  process.exitCode = await main(parseOptions(process.argv.slice(2)))
} catch (error) {
  console.error(`error: ${error instanceof Error ? error.message : error}`)
  process.exitCode = abort.signal.aborted ? 130 : 1
}

async function main(options: Options): Promise<number> {
  if (options.command === 'help') return say(HELP)
  if (options.command === 'down') return down(options)
  if (options.command === 'load-balancer') {
    const site = siteOf(options.parameters.name)
    return new LoadBalancer(site, accessOf(site, kubeconfigOf(site, 'admin'))).run()
  }
  if (options.command === 'traffic') {
    const [flows = '', counts = '', stop = ''] = options.words
    await runTraffic({ flows, counts, stop })
    return 0
  }
  if (options.command === 'ask')
    return say(JSON.stringify(await askAll(JSON.parse(await text(process.stdin)))))
  const { binaries, obstacle } = findPrograms(ROOT)
  if (binaries === undefined) return say(`skipped: ${obstacle}\n`)
  const session: Session = { binaries, root: ROOT, program: PROGRAM, progress, signal: abort.signal }
  switch (options.command) {
    case 'up':
      return up(options, session)
    case 'proxy':
      return proxy(options, session)
    case 'run':
      return run(options, openCluster(options.parameters.name, session))
    case 'life':
      return options.fresh
        ? freshLives(options, session, [{ ...firstProxy(options), only: options.only }])
        : life(options, openCluster(options.parameters.name, session))
    case 'sets':
      return sets(options, session)
    case 'exec':
      return exec(options, openCluster(options.parameters.name, session))
    case 'all':
      return all(options, session)
  }
}

async function up(options: Options, session: Session): Promise<number> {
  await orRemoved(options, async () => {
    const cluster = await startCluster(options.parameters, { ...session, isTied: false })
    await startProxies(cluster.site, firstProxy(options), cluster.tools)
    await startDns(cluster, abort.signal)
    progress(
      `up; kubectl: npm run test:cluster -- exec control-plane kubectl --kubeconfig ${kubeconfigOf(cluster.site, 'admin')}`,
    )
  })
  return 0
}

/** Runs every set with every proxy in every mode, in one cluster, which is gone afterwards. */
async function all(options: Options, session: Session): Promise<number> {
  const status = await orRemoved(options, async () => {
    const cluster = await startCluster(options.parameters, { ...session, isTied: true })
    let worst = 0
    for (const proxy of options.proxies)
      for (const [at, mode] of options.modes.entries()) {
        await startProxies(cluster.site, { proxy, mode, form: options.form }, cluster.tools)
        progress(`${proxy} serves in ${mode} mode`)
        if (at === 0 && proxy === options.proxies[0]) await startDns(cluster, abort.signal)
        worst = Math.max(worst, await run(options, cluster))
        await stopProxies(cluster.site, cluster.tools)
      }
    return worst
  })
  return Math.max(status, await down(options))
}

/** A cluster that cannot be started or used is gone, and its logs are kept. */
async function orRemoved<T>(options: Options, work: () => Promise<T>): Promise<T> {
  const { name } = options.parameters
  try {
    return await work()
  } catch (error) {
    const site = siteOf(name)
    const isOther = error instanceof Error && error.message.includes('is up already')
    if (isOther) throw error
    const logs = join(RESULTS, `failed-${name}`)
    saveLogs(site, logs)
    await removeCluster(site)
    const words = error instanceof Error ? error.message : String(error)
    throw new Error(`${words.replaceAll(site.folder, logs)}\nthe cluster is removed; its logs are in ${logs}`)
  }
}

async function proxy(options: Options, session: Session): Promise<number> {
  const { site, tools } = openCluster(options.parameters.name, session)
  await stopProxies(site, tools)
  const chosen = firstProxy(options)
  await startProxies(site, chosen, tools)
  progress(`${chosen.proxy} serves in ${chosen.mode} mode`)
  return 0
}

function firstProxy({
  proxies: [proxy = 'kprobe'],
  modes: [mode = 'nftables'],
  form,
}: Options): RunningProxy {
  return { proxy, mode, form }
}

async function run(options: Options, cluster: Cluster): Promise<number> {
  const proxy = runningProxy(cluster.site)
  if (proxy === undefined) throw new Error('the cluster has no proxy; the command proxy starts one')
  let status = 0
  for (const suite of options.suites) {
    const report = await runOne(cluster, { proxy, suite, options })
    if (judge(report, options) > 0) status = 1
  }
  return status
}

function sets(options: Options, session: Session): Promise<number> {
  const previous = previousOf(options)
  if (previous === undefined && options.lifeSets.some(({ name }) => name === 'upgrade'))
    throw new Error('upgrade: no tag of a release before HEAD; give --previous COMMIT')
  const runs = options.lifeSets.flatMap(each => each.runs)
  // The runs before it take minutes.
  if (runs.some(({ form }) => form === 'chart')) requireHelm(session.binaries)
  return freshLives({ ...options, previous }, session, runs)
}

function previousOf({ previous }: Options): string | undefined {
  return previous ?? releaseBefore(ROOT)
}

/** One after the other in a cluster of their own, which is gone afterwards. */
async function freshLives(options: Options, session: Session, runs: readonly LifeRun[]): Promise<number> {
  const status = await orRemoved(options, async () => {
    const cluster = await startCluster(options.parameters, { ...session, isTied: true })
    let worst = 0
    for (const [at, { only, ...proxy }] of runs.entries()) {
      await startProxies(cluster.site, proxy, cluster.tools)
      progress(`${proxy.proxy} serves in ${proxy.mode} mode (${proxy.form})`)
      if (at === 0) await startDns(cluster, abort.signal)
      const status = await life({ ...options, only }, cluster)
      // With the pods go their logs.
      if (status > 0 && worst === 0) {
        const logs = join(RESULTS, `failed-${cluster.site.parameters.name}`)
        saveLogs(cluster.site, logs)
        progress(`the logs of the cluster are in ${logs}`)
      }
      worst = Math.max(worst, status)
      await stopProxies(cluster.site, cluster.tools)
    }
    return worst
  })
  return Math.max(status, await down(options))
}

/** Fails when a request has failed. Its last line is for test/stages. */
async function life(options: Options, cluster: Cluster): Promise<number> {
  const { rounds, only } = options
  const previous = previousOf(options)
  const running = runningProxy(cluster.site)
  const folder = join(RESULTS, ['life', running?.proxy, running?.form, running?.mode].join('-'))
  const release = await holdFolder(folder)
  const report = await runLife(cluster, {
    ...{ rounds, only, previous, folder, progress },
    program: PROGRAM,
    signal: abort.signal,
  })
  writeFileSync(join(folder, 'results.json'), `${JSON.stringify(report, undefined, 2)}\n`)
  for (const line of lifeTable(report)) console.log(line)
  progress(`${folder}/results.json`)
  await release()
  const failed = report.events.filter(({ kinds }) => Object.values(kinds).some(kind => kind.failed > 0))
  for (const { name, failures } of failed) console.log(`FAIL  ${name}: ${failures[0] ?? 'requests failed'}`)
  const passed = report.events.length - failed.length
  console.log(`      Tests  ${failed.length} failed | ${passed} passed (${report.events.length})`)
  return failed.length > 0 ? 1 : 0
}

interface Run {
  readonly proxy: RunningProxy
  readonly suite: Suite
  readonly options: Options
}

async function runOne(cluster: Cluster, { proxy, suite, options }: Run): Promise<Report> {
  const { site, tools } = cluster
  const { nodes, zones, families } = site.parameters
  const folder = join(
    RESULTS,
    [proxy.proxy, ...(proxy.form === 'process' ? [] : [proxy.form]), proxy.mode, suite.name].join('-'),
  )
  const release = await holdFolder(folder)
  const { procs, only } = options
  const startedMs = performance.now()
  const tests = await runSuite(site, tools, {
    ...{ suite, mode: proxy.mode, procs, only, folder, progress },
    signal: abort.signal,
  })
  const seconds = Math.round((performance.now() - startedMs) / 1000)
  const kubernetes =
    tools.namespaces
      .must({ file: tools.binaries.path('kubelet'), args: ['--version'] })
      .split(' ')[1]
      ?.trim() ?? ''
  const report = {
    kubernetes,
    ...proxy,
    suite: suite.name,
    nodes,
    zones,
    families: families.join(','),
    procs,
    seconds,
    tests,
  }
  writeFileSync(join(folder, 'results.json'), `${JSON.stringify(report, undefined, 2)}\n`)
  for (const node of site.nodes) writeFileSync(join(folder, `${node.name}.log`), logOf(node, proxy))
  for (const line of tableOf(report)) console.log(line)
  progress(`${folder}/results.json, and ginkgo.log there`)
  await release()
  return report
}

/** How many tests fail, or with --compare how many are worse than with kube-proxy. Its line is for test/stages. */
function judge(report: Report, { compare, store, only, suites }: Options): number {
  const { passed, failed, skipped } = countsOf(report.tests)
  console.log(
    `      Tests  ${failed} failed | ${passed} passed | ${skipped} skipped (${report.tests.length})`,
  )
  // The conformance tests are a part of those of Services.
  const isPart = only !== undefined || report.suite === 'conformance'
  const whole = report.suite === 'conformance' ? 'services' : report.suite
  const file = join(BASELINES, `kube-proxy-${report.mode}-${whole}.json`)
  const before: Baseline | undefined = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : undefined
  if (store && report.proxy === 'kube-proxy') {
    mkdirSync(dirname(file), { recursive: true })
    const after = isPart && before !== undefined ? withPart(before, report) : baselineOf(report)
    writeFileSync(file, `${JSON.stringify(after, undefined, 2)}\n`)
    return 0
  }
  if (!compare) return failed
  if (before === undefined)
    throw new Error(`--compare: there is no baseline ${file}; --proxy kube-proxy --store writes one`)
  const suite = suites.find(({ name }) => name === report.suite)
  const worse = worseThan(before, report, new RegExp(suite === undefined ? '' : focusOf(suite, only)))
  for (const line of worse) console.log(`FAIL  ${line}`)
  return worse.length
}

function exec({ words: [name = '', file, ...args] }: Options, { site, tools }: Cluster): number {
  const isNode = site.nodes.some(node => node.name === name)
  if ((!isNode && name !== 'control-plane') || file === undefined)
    throw new Error(
      `exec PLACE COMMAND...: PLACE is control-plane, ${site.nodes.map(node => node.name).join(', ')}`,
    )
  const place = isNode ? tools.namespaces.node(name) : tools.namespaces.controlPlane
  const env = { PATH: `${tools.binaries.searchPath}:${process.env.PATH ?? ''}:/usr/sbin:/sbin` }
  const { status, stdout, stderr } = tools.namespaces.run({ file, args, env }, { place })
  process.stderr.write(stderr)
  say(stdout)
  return status ?? 1
}

async function down({ parameters: { name } }: Options): Promise<number> {
  const site = siteOf(name)
  const wasThere = await removeCluster(site)
  const left = leftoversOf(planSite({ ...site.parameters, name }))
  for (const each of left) console.error(`error: left of the cluster ${name}: ${each}`)
  progress(wasThere ? `the cluster ${name} is gone` : `there is no cluster ${name}`)
  return left.length > 0 ? 1 : 0
}

function say(words: string): number {
  process.stdout.write(words)
  return 0
}

function progress(words: string): void {
  console.log(`${String(Math.round((performance.now() - began) / 1000)).padStart(4)} s  ${words}`)
}
