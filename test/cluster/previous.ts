import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, readFileSync, rmSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'

/*
 * The version that an upgrade comes from: a tree of its own, built from a commit of this repository.
 */

/** The newest tag of a release before HEAD; undefined before the second release. */
export function releaseBefore(root: string): string | undefined {
  // A commit that has a tag is that release itself.
  const args = ['describe', '--tags', '--abbrev=0', '--match', 'v[0-9]*', 'HEAD~1']
  const { status, stdout } = spawnSync('git', args, { cwd: root, encoding: 'utf8' })
  return status === 0 ? stdout.trim() : undefined
}

/** Builds the tree of a commit, and gives its folder. */
export function buildPrevious(root: string, commit: string): string {
  const tree = join(root, '.cache/cluster/previous')
  const git = (...args: readonly string[]) =>
    execFileSync('git', args, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }).trim()
  const hash = git('rev-parse', '--verify', `${commit}^{commit}`)
  // Two events in a row come from one version.
  if (existsSync(buildFile(tree)) && hash.startsWith(commitOf(tree))) return tree
  rmSync(tree, { recursive: true, force: true })
  // A repository of its own: dist/build.json names the commit.
  git('clone', '--quiet', '--shared', '--no-checkout', '.', tree)
  git('-C', tree, 'checkout', '--quiet', '--detach', hash)
  installPackages(root, tree)
  for (const script of ['native/build.mjs', 'deploy/build.mjs'])
    execFileSync(process.execPath, [script], { cwd: tree, stdio: ['ignore', 'ignore', 'pipe'] })
  return tree
}

/** The packages of that version: those of the checkout where both lists are equal. */
function installPackages(root: string, tree: string): void {
  const lockOf = (folder: string) => readFileSync(join(folder, 'package-lock.json'), 'utf8')
  if (lockOf(tree) === lockOf(root)) symlinkSync(join(root, 'node_modules'), join(tree, 'node_modules'))
  else
    execFileSync('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund'], {
      cwd: tree,
      stdio: ['ignore', 'ignore', 'pipe'],
    })
}

/** The commit in dist/build.json, which the daemon shows in the metric kprobe_build_info. */
export function commitOf(tree: string): string {
  const { commit }: { commit: string } = JSON.parse(readFileSync(buildFile(tree), 'utf8'))
  return commit
}

function buildFile(tree: string): string {
  return join(tree, 'dist/build.json')
}
