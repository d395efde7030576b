// The notes of a release: the section of its version in CHANGELOG.md.

/** The heading of a section: `## [0.1.0] - 2026-11-29`, `## [Unreleased]`. */
const HEADING = /^## \[([^\]]+)\].*$/

/**
 * Gives the text below the heading of a version. Without one, `dryRun` takes the unreleased section. Throws where there is
 * none, where it is empty, and where a released version has entries of the unreleased one beside it.
 */
export function notesOf(changelog, { version, dryRun }) {
  const sections = sectionsOf(changelog)
  const own = sections.get(version)
  const unreleased = (sections.get('Unreleased') ?? '').trim()
  if (own === undefined && !dryRun)
    throw new Error(`CHANGELOG.md has no section [${version}]: rename [Unreleased], with the date`)
  if (own !== undefined && unreleased !== '' && !dryRun)
    throw new Error(`CHANGELOG.md has entries under [Unreleased], which a release of ${version} leaves out`)
  const text = (own ?? unreleased).trim()
  if (text === '') throw new Error(`CHANGELOG.md says nothing about ${version}`)
  return `${text}\n`
}

function sectionsOf(changelog) {
  const sections = new Map()
  let name
  for (const line of changelog.split('\n')) {
    const [, next] = HEADING.exec(line) ?? []
    if (next !== undefined) name = next
    else if (name !== undefined) sections.set(name, `${sections.get(name) ?? ''}${line}\n`)
  }
  return sections
}
