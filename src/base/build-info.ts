/** Identifies the build: the bundler (deploy/build.mjs) replaces the expressions below by their values. */
export interface BuildInfo {
  /** `0.1.0`, of package.json. */
  readonly version: string
  /** Abbreviated commit, with `-dirty` for changes on top of it; empty when unknown. */
  readonly commit: string
  /** The time of the commit, RFC 3339; empty when unknown. */
  readonly date: string
}

export function buildInfo(): BuildInfo {
  return {
    version: process.env.KPROBE_VERSION ?? 'from source',
    commit: process.env.KPROBE_COMMIT ?? '',
    date: process.env.KPROBE_COMMIT_DATE ?? '',
  }
}

/** `0.1.0 (commit 41d39fb)`. */
export function buildText({ version, commit }: BuildInfo): string {
  return commit === '' ? version : `${version} (commit ${commit})`
}

/** Gives the version, on one line; for programs all that is known of the build and the runtime, a line each. */
export function versionText(isForPrograms = false): string {
  if (!isForPrograms) return `kprobe ${buildText(buildInfo())}\n`
  return Object.entries(buildFacts())
    .map(([name, value]) => `${name}: ${value}\n`)
    .join('')
}

export function buildFacts(): Readonly<Record<string, string>> {
  const { version, commit, date } = buildInfo()
  const platform = `${process.platform}/${process.arch}`
  const facts = { version, commit, date, node: process.version, platform }
  return Object.fromEntries(Object.entries(facts).filter(([, value]) => value !== ''))
}

/** The packages, with versions, that the bundler put into the daemon, into the file that only `kprobe nodes` loads, and into the page. */
export function bundledPackages(): Readonly<Record<string, readonly string[]>> | undefined {
  const packages = process.env.KPROBE_PACKAGES
  return packages === undefined ? undefined : JSON.parse(packages)
}
