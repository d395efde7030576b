import { type ChildProcess, spawn } from 'node:child_process'
import type { Clock } from '../../../base/clock.ts'
import { codeOf } from '../../../base/errors.ts'
import { signalGroup } from '../../../base/process-group.ts'
import { bytesText } from '../../../base/text.ts'
import { isJson, type Json } from '../../../model/fields.ts'
import { ApiError } from '../api-client.ts'
import type { ExecConfig } from './kubeconfig.ts'

/** The output of a credential plugin. Holds secrets: never to be printed. */
export interface ExecCredential {
  readonly token: string | undefined
  readonly cert: string | undefined
  readonly key: string | undefined
  /** Time of day in milliseconds since 1970; undefined when it lasts until it is refused. */
  readonly expiresWallMs: number | undefined
}

/** The cluster as plugins that request it get it (ExecCredential.spec.cluster). */
export interface ExecCluster {
  readonly server: string
  readonly 'tls-server-name'?: string
  readonly 'insecure-skip-tls-verify'?: boolean
  readonly 'certificate-authority-data'?: string
}

interface ExecRun {
  readonly exec: ExecConfig
  readonly where: string
  readonly cluster: ExecCluster
  readonly clock: Clock
  /** The plugin's, without what the kubeconfig adds. */
  readonly env: Readonly<Record<string, string | undefined>>
  readonly signal: AbortSignal
}

/** A plugin may ask a server of its own; no request waits for it any longer. */
const LIMIT_MS = 30_000
/** Limit of each of its two outputs: a credential has some kilobytes. */
const OUTPUT_BYTES_MAX = 1 << 20
const STDERR_CHARS_MAX = 300

/**
 * Runs a credential plugin (client.authentication.k8s.io/v1 and v1beta1) and reads what it prints. The plugin has a process
 * group of its own, which is killed when the plugin ends, runs too long or prints too much, and when this process ends. Throws
 * ApiError 'credentials', whose words hold no output that could be a secret.
 */
export async function runExecPlugin(run: ExecRun): Promise<ExecCredential> {
  const { exec, where, signal } = run
  signal.throwIfAborted()
  const outcome = await outputOf(run)
  if (outcome.kind === 'failed') throw new ApiError('credentials', `${where}: ${exec.command} ${outcome.why}`)
  const credential = readCredential(outcome.stdout)
  if (typeof credential === 'string')
    throw new ApiError('credentials', `${where}: ${exec.command} ${credential}`)
  return credential
}

type Outcome =
  | { readonly kind: 'printed'; readonly stdout: string }
  /** Words that follow the name of the plugin. */
  | { readonly kind: 'failed'; readonly why: string }

async function outputOf(run: ExecRun): Promise<Outcome> {
  const { exec, clock, signal } = run
  const child = startPlugin(run)
  if ('why' in child) return child
  const { pid, stdout, stderr } = child
  return await new Promise<Outcome>(resolve => {
    let isOver = false
    const endGroup = () => {
      const runs = child.exitCode === null && child.signalCode === null
      if (pid !== undefined && runs) signalGroup(pid, 'SIGKILL')
    }
    const settle = (outcome: Outcome) => {
      if (isOver) return
      isOver = true
      cancel()
      signal.removeEventListener('abort', aborted)
      process.off('exit', endGroup)
      if (outcome.kind === 'failed') endGroup()
      for (const pipe of [stdout, stderr]) pipe?.destroy()
      resolve(outcome)
    }
    const fail = (why: string) => settle({ kind: 'failed', why })
    const aborted = () => fail('was killed: the client was closed')
    const cancel = clock.after(LIMIT_MS, () =>
      fail(`was killed: it was still running after ${LIMIT_MS / 1000} s`),
    )
    // The plugin must not outlive this process.
    process.on('exit', endGroup)
    signal.addEventListener('abort', aborted, { once: true })
    const tooMuch = () => fail(`was killed: it printed more than ${bytesText(OUTPUT_BYTES_MAX)}`)
    const said = collect(stdout, tooMuch)
    const complained = collect(stderr, tooMuch)
    child.once('error', error => fail(whyNotStarted(error, exec)))
    child.once('exit', code => {
      // A group id is reserved only while the group has members, so a later kill could hit another group.
      if (pid !== undefined) signalGroup(pid, 'SIGKILL')
      const over = () => settle(code === 0 ? { kind: 'printed', stdout: said() } : failure(complained()))
      // A process of another group may hold the pipes for ever.
      const cancelRest = clock.after(200, over)
      child.once('close', () => {
        cancelRest()
        over()
      })
    })
  })
}

function startPlugin(run: ExecRun): ChildProcess | Extract<Outcome, { readonly kind: 'failed' }> {
  const { exec } = run
  const own = Object.fromEntries(exec.env.map(({ name, value }) => [name, value]))
  const env = { ...run.env, ...own, KUBERNETES_EXEC_INFO: execInfo(run) }
  try {
    return spawn(exec.command, [...exec.args], { env, detached: true, stdio: ['ignore', 'pipe', 'pipe'] })
  } catch (error) {
    return { kind: 'failed', why: whyNotStarted(error, exec) }
  }
}

function execInfo({ exec, cluster }: ExecRun): string {
  return JSON.stringify({
    apiVersion: exec.apiVersion,
    kind: 'ExecCredential',
    spec: { interactive: false, ...(exec.provideClusterInfo ? { cluster } : {}) },
  })
}

/** Reads an output up to its bound, and gives what came so far. */
function collect(pipe: ChildProcess['stdout'], tooMuch: () => void): () => string {
  const parts: Buffer[] = []
  let bytes = 0
  pipe?.on('data', (part: Buffer) => {
    bytes += part.length
    if (bytes > OUTPUT_BYTES_MAX) tooMuch()
    else parts.push(part)
  })
  return () => Buffer.concat(parts).toString('utf8')
}

/** The words of what is wrong with it, or the credential. */
function readCredential(stdout: string): ExecCredential | string {
  const status = statusOf(stdout)
  if (status === undefined) return 'printed something that is not an ExecCredential'
  const [token, cert, key] = [status.token, status.clientCertificateData, status.clientKeyData].map(textOf)
  if (token === undefined && (cert === undefined || key === undefined))
    return 'gave neither a token nor a certificate'
  const wallMs = Date.parse(textOf(status.expirationTimestamp) ?? '')
  return { token, cert, key, expiresWallMs: Number.isNaN(wallMs) ? undefined : wallMs }
}

function statusOf(stdout: string): Json | undefined {
  try {
    const answer: unknown = JSON.parse(stdout)
    return isJson(answer) && isJson(answer.status) ? answer.status : undefined
  } catch {
    // The parser's words may quote what was printed.
    return undefined
  }
}

function textOf(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined
}

function whyNotStarted(error: unknown, { installHint }: ExecConfig): string {
  const hint = installHint === '' ? '' : `; ${installHint.trim().slice(0, STDERR_CHARS_MAX)}`
  return `cannot be started: ${codeOf(error)}${hint}`
}

function failure(stderr: string): Outcome {
  const said = withoutSecrets(stderr).trim()
  const why = said === '' ? 'failed or was killed, without output on standard error' : `failed: ${said}`
  return { kind: 'failed', why }
}

/** Anything long that is not a path or address may be a token. */
function withoutSecrets(output: string): string {
  const words = output.slice(0, 4 * STDERR_CHARS_MAX).split(/\s+/)
  const safe = words.map(word => (word.length > 24 && !/^["'(]?(\/|https?:)/.test(word) ? '…' : word))
  return safe.join(' ').slice(0, STDERR_CHARS_MAX)
}
