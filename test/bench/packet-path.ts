import { execFileSync } from 'node:child_process'
import { join } from 'node:path'

/** Source address of the packets that `nanosecondsTo` sends. */
const SOURCE = '10.0.0.1'

/** A way out for every address, on which everything is dropped behind all chains that a mode has at OUTPUT. */
export function connectToNowhere(): void {
  const ip = (...args: readonly string[]) => execFileSync('ip', args)
  ip('link', 'set', 'lo', 'up')
  ip('link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'far')
  ip('link', 'set', 'far', 'up')
  ip('address', 'add', `${SOURCE}/24`, 'dev', 'out')
  ip('link', 'set', 'out', 'up')
  ip('route', 'add', 'default', 'dev', 'out')
  const rules = 'table ip bench { chain out { type filter hook output priority 10; drop; }; }'
  execFileSync('nft', ['-f', '-'], { input: rules })
}

/** Compiles the program that sends packets. */
export function buildSender(): void {
  const source = join(root(), 'test/bench/iptables-path.c')
  execFileSync('gcc', ['-O2', '-Wall', '-Wextra', '-Werror', '-o', program(), source])
}

/** Sends packets to each `ADDRESS:PORT`; gives nanoseconds of processor time a packet, by destination. */
export function nanosecondsTo(targets: readonly string[]): readonly number[] {
  const text = execFileSync(program(), ['3', '3000', SOURCE, ...targets], { encoding: 'utf8' })
  return text.trim().split('\n').map(Number)
}

function program(): string {
  return join(root(), '.cache/bench/iptables-path')
}

function root(): string {
  const root = process.env.KPROBE_ROOT
  if (root === undefined) throw new Error('start benchmarks with: npm run bench')
  return root
}
