import { dirname, isAbsolute, join } from 'node:path'
import { codeOf } from '../../base/errors.ts'
import { isJson, type Json } from '../../model/fields.ts'
import { ApiError } from '../../source/kube/api-client.ts'
import {
  type Access,
  parseKubeconfig,
  readKubeconfig,
  readSmallFile,
} from '../../source/kube/client/kubeconfig.ts'

/** The identity that --as, --as-group and --as-uid request; each given part replaces that of the kubeconfig. */
export interface Impersonation {
  readonly user: string
  readonly groups: readonly string[]
  readonly uid: string
}

interface KubeconfigFiles {
  readonly paths: readonly string[]
  readonly context: string | undefined
  readonly impersonation: Impersonation
  readonly warn: (text: string) => void
}

export interface Kubeconfig {
  readonly access: Access
  /** The fields of the user's auth-provider `oidc`. Holds secrets: never to be printed. */
  readonly oidc: Readonly<Record<string, string>> | undefined
}

/**
 * Reads files as kubectl merges them: the first file that has an entry or the current-context decides, and paths are
 * relative to the file that names them. Of several files, those that cannot be read are skipped. Throws ApiError
 * 'credentials', which repeats no value of a file.
 */
export async function readKubeconfigs({ paths, ...asked }: KubeconfigFiles): Promise<Kubeconfig> {
  const merged = mergedFiles(await readFiles(paths, asked.warn))
  const oidc = takeOidc(merged, asked.context)
  const path = paths.join(':')
  const access = readKubeconfig({ path, text: JSON.stringify(merged), master: '', context: asked.context })
  return { access: impersonating(access, asked.impersonation), oidc }
}

async function readFiles(paths: readonly string[], warn: (text: string) => void): Promise<readonly Json[]> {
  const roots: Json[] = []
  let failure: unknown
  for (const path of new Set(paths)) {
    let text: string
    try {
      text = await readSmallFile(path, 'kubeconfig')
    } catch (error) {
      failure ??= error
      if (paths.length > 1 && error instanceof Error && codeOf(error.cause) !== 'ENOENT')
        warn(`${error.message}; it is skipped`)
      continue
    }
    const isEmpty = paths.length > 1 && text.trim() === ''
    if (!isEmpty) roots.push(withPaths(parseKubeconfig({ path, text }), dirname(path)))
  }
  if (roots.length > 0) return roots
  throw failure ?? new ApiError('credentials', `kubeconfig ${paths.join(':')}: all files are empty`)
}

interface Merged {
  'current-context': unknown
  readonly clusters: Json[]
  readonly users: Json[]
  readonly contexts: Json[]
}
type Kind = 'cluster' | 'user' | 'context'

const PATHS: Readonly<Record<Kind, readonly string[]>> = {
  cluster: ['certificate-authority'],
  user: ['client-certificate', 'client-key', 'tokenFile'],
  context: [],
}

function entriesOf(root: Json, kind: Kind): readonly Json[] {
  const list: unknown = root[`${kind}s`]
  return Array.isArray(list) ? list.filter(isJson) : []
}

function withPaths(root: Json, folder: string): Json {
  const absolute = (path: unknown) =>
    typeof path === 'string' && path !== '' && !isAbsolute(path) ? join(folder, path) : path
  const withOwn = (entry: Json, kind: Kind): Json => {
    const body = entry[kind]
    if (!isJson(body)) return entry
    const own = PATHS[kind].filter(field => field in body).map(field => [field, absolute(body[field])])
    const { exec } = body
    // The shell's rule: a command without a slash is looked up in PATH.
    if (isJson(exec) && String(exec.command).includes('/'))
      own.push(['exec', { ...exec, command: absolute(exec.command) }])
    return { ...entry, [kind]: { ...body, ...Object.fromEntries(own) } }
  }
  const listOf = (kind: Kind) => [`${kind}s`, entriesOf(root, kind).map(entry => withOwn(entry, kind))]
  return { ...root, ...Object.fromEntries([listOf('cluster'), listOf('user'), listOf('context')]) }
}

function mergedFiles(roots: readonly Json[]): Merged {
  const first = (kind: Kind) => {
    const byName = new Map<unknown, Json>()
    for (const entry of roots.flatMap(root => entriesOf(root, kind)))
      if (!byName.has(entry.name)) byName.set(entry.name, entry)
    return [...byName.values()]
  }
  return {
    'current-context': roots.map(root => root['current-context']).find(name => (name ?? '') !== ''),
    clusters: first('cluster'),
    users: first('user'),
    contexts: first('context'),
  }
}

/** Removes what our reader refuses, an auth-provider `oidc`, from the user of the context, and gives its fields. */
function takeOidc(merged: Merged, asked: string | undefined): Kubeconfig['oidc'] {
  const name = asked ?? merged['current-context']
  const context = merged.contexts.find(each => each.name === name)?.context
  const at = merged.users.findIndex(each => isJson(context) && each.name === context.user)
  const entry = merged.users[at]
  if (entry === undefined || !isJson(entry.user)) return undefined
  const { 'auth-provider': provider, ...user } = entry.user
  if (!isJson(provider) || provider.name !== 'oidc') return undefined
  merged.users[at] = { ...entry, user }
  const fields = isJson(provider.config) ? Object.entries(provider.config) : []
  return Object.fromEntries(
    fields.flatMap(([field, value]) => (typeof value === 'string' ? [[field, value]] : [])),
  )
}

function impersonating(access: Access, { user, groups, uid }: Impersonation): Access {
  const impersonation = {
    ...access.impersonation,
    ...(user === '' ? {} : { 'impersonate-user': user }),
    ...(groups.length === 0 ? {} : { 'impersonate-group': [...groups] }),
    ...(uid === '' ? {} : { 'impersonate-uid': uid }),
  }
  if (Object.keys(impersonation).length > 0 && impersonation['impersonate-user'] === undefined)
    throw new ApiError('credentials', '--as-group and --as-uid need a user: give --as')
  return { ...access, impersonation }
}
