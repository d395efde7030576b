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
