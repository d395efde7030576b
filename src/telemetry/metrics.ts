import { Counter, Gauge, Histogram, Registry } from 'prom-client'

/** Numbers about what the daemon does. Values come in; nothing is called back. */
export interface Metrics {
  commit(outcome: { readonly bytes: number; readonly durationMs: number; readonly changes: number }): void
  /** The kernel moved on before a commit, which is planned again. */
  staleCommit(): void
  failedPass(): void
  foreignCommit(): void
  /** Damage to our tables that was repaired. */
  healed(objects: number): void
  quarantined(services: number): void
  refusals(now: number): void
  sourceProblem(): void
  /** Everything, in Prometheus' text format. */
  text(): Promise<string>
}

export function createMetrics(): Metrics {
  const registry = new Registry()
  const registers = [registry]
  const counter = (name: string, help: string) => new Counter({ name: `kprobe_${name}`, help, registers })
  const gauge = (name: string, help: string) => new Gauge({ name: `kprobe_${name}`, help, registers })
  const commits = counter('commits_total', 'Commits that the kernel took.')
  const bytes = counter('commit_bytes_total', 'Bytes of netlink messages in them.')
  const changes = counter('commit_changes_total', 'Kernel objects created, changed or removed by them.')
  const duration = new Histogram({
    name: 'kprobe_commit_duration_seconds',
    help: 'From sending a commit to its acknowledgement.',
    buckets: [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5],
    registers,
  })
  const stale = counter(
    'commit_generation_retries_total',
    'Commits refused because somebody else committed first.',
  )
  const failed = counter('failed_passes_total', 'Passes that ended in an error and were tried again.')
  const foreign = counter('foreign_commits_total', 'Times that the kernel had moved on without us.')
  const heals = counter('heals_total', 'Times that damage to our objects was found and repaired.')
  const healedObjects = counter('healed_objects_total', 'Kernel objects repaired.')
  const inQuarantine = gauge('quarantined_services', 'Services that the kernel refuses at present.')
  const refused = gauge('refusals', 'Fields and objects of the source that are refused at present.')
  const problems = counter('source_problems_total', 'Times that a part of the source could not be used.')
  return {
    commit(outcome) {
      commits.inc()
      bytes.inc(outcome.bytes)
      changes.inc(outcome.changes)
      duration.observe(outcome.durationMs / 1000)
    },
    staleCommit: () => stale.inc(),
    failedPass: () => failed.inc(),
    foreignCommit: () => foreign.inc(),
    healed(objects) {
      heals.inc()
      healedObjects.inc(objects)
    },
    quarantined: services => inQuarantine.set(services),
    refusals: now => refused.set(now),
    sourceProblem: () => problems.inc(),
    text: () => registry.metrics(),
  }
}
