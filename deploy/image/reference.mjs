const NAME_PART = '[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*'
const HOST = /^(?:localhost|[\w-]+(?:\.[\w-]+)+|\[[\da-fA-F:]+\]|[\w-]+(?=:))(?::\d+)?$/
const NAME = new RegExp(`^${NAME_PART}(?:/${NAME_PART})*$`)
const TAG = /^\w[\w.-]{0,127}$/

/**
 * Reads the name of an image as Docker does: `kprobe` is `docker.io/library/kprobe`, with `version` as its tag. Gives the
 * full name, which containerd stores, the one that Docker shows, and the tag.
 */
export function readReference(text, version) {
  if (text.includes('@')) throw new Error(`--tag ${text}: a digest is computed, not chosen; give NAME:TAG`)
  const [, name = text, tag = version] = /^(.*):([^/]*)$/.exec(text) ?? []
  const [first = '', ...rest] = name.split('/')
  const hasHost = rest.length > 0 && HOST.test(first)
  const path = hasHost ? rest.join('/') : name
  if (!NAME.test(path))
    throw new Error(
      `--tag ${text}: ${path || 'an empty name'} is no name of an image (lower case: [a-z0-9._-/])`,
    )
  if (!TAG.test(tag)) throw new Error(`--tag ${text}: ${tag || 'an empty tag'} is no tag ([A-Za-z0-9_.-])`)
  const host = hasHost ? first : 'docker.io'
  const library = host === 'docker.io' && !path.includes('/') ? 'library/' : ''
  return { full: `${host}/${library}${path}:${tag}`, familiar: `${name}:${tag}`, tag }
}
